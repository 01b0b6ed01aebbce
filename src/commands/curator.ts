/**
 * `clusternet curator`: the small Curator of this project, until it is asked to stop.
 *
 * Takes options that are of the right form already (src/settings.ts parsed them) and decides what cannot be
 * used: that is thrown as a ClusternetError whose `exit` is the status to end with.
 */
import { logVerbosity, setLogVerbosity } from "@grpc/grpc-js";
import { join, resolve } from "node:path";
import { aborted } from "../async.ts";
import { containsAddress, decodeAddress, parsePrefix, type Prefix } from "../core/prefix.ts";
import { startAdminSocket } from "../curator-server/admin.ts";
import {
  insecureTransport,
  renderHostPort,
  startCuratorServer,
  type CuratorServer,
  type Transport,
} from "../curator-server/server.ts";
import { openSqliteStore } from "../curator-server/sqlite-store.ts";
import { MemoryStore } from "../curator-server/store.ts";
import { tlsTransport } from "../curator-server/tls.ts";
import { exitStatus, UsageError, type ExitStatus } from "../errors.ts";
import { ensureDataDirectory } from "../host/files.ts";
import { acquireDirectoryLock } from "../host/lock.ts";
import type { Logger, RedactingLogger } from "../log.ts";
import type { CredentialFiles } from "../trust/credential-files.ts";
import { readCredentials, redactKey, warnOfOpenKey } from "../trust/credentials.ts";

/** Flags of `clusternet curator`, parsed. */
export interface CuratorOptions {
  /** `host` as written, without the brackets of an IPv6 address; port 0 takes any free one. */
  readonly listen: { readonly host: string; readonly port: number };
  readonly dataDir: string;
  readonly store: "sqlite" | "memory";
  /** One per address family at most, at least one. */
  readonly clusterNets: readonly Prefix[];
  /** Absent: no TLS. */
  readonly credentials?: CredentialFiles;
  readonly insecureAnywhere: boolean;
}

/** What a command gets from `main` besides its options. */
export interface CuratorContext {
  readonly log: RedactingLogger;
  /** Aborts when the command is asked to stop (SIGTERM, SIGINT). */
  readonly signal: AbortSignal;
}

/** Serves until `signal` aborts. Throws ClusternetError for what cannot be used. */
export async function runCurator(options: CuratorOptions, context: CuratorContext): Promise<ExitStatus> {
  const { log, signal } = context;
  requireLoopback(options);
  // grpc-js writes lines of its own on stderr; what matters of them reaches us as errors.
  setLogVerbosity(logVerbosity.NONE);
  const transport = await transportOf(options, log);
  const dataDirectory = resolve(options.dataDir);
  await ensureDataDirectory(dataDirectory);
  const lock = acquireDirectoryLock(
    dataDirectory,
    "One Curator runs per data directory: stop that one, or choose another --data-dir",
  );
  try {
    const store =
      options.store === "memory" ? new MemoryStore() : openSqliteStore(join(dataDirectory, "curator.db"));
    let server: CuratorServer;
    try {
      server = await startCuratorServer({
        listen: options.listen,
        transport,
        store,
        clusterNets: options.clusterNets,
        log,
      });
    } catch (error) {
      store.close();
      throw error;
    }
    try {
      const admin = startAdminSocket(dataDirectory, server.registry);
      warnOfWhatIsMissing(options, log);
      log.info("Curator is listening", {
        listen: renderHostPort({ host: options.listen.host, port: server.port }),
        clusterNet: options.clusterNets.map(({ text }) => text).join(", "),
        nodes: server.registry.nodes.length,
        dataDirectory,
        ...(options.credentials === undefined ? {} : { node: transport.leaderId }),
      });
      await aborted(signal);
      log.info("Curator is stopping", { watchers: server.registry.fanOut.watchers });
      await admin.stop();
    } finally {
      await server.stop();
    }
  } finally {
    lock.release();
  }
  return exitStatus.ok;
}

async function transportOf({ credentials }: CuratorOptions, log: RedactingLogger): Promise<Transport> {
  if (credentials === undefined) return insecureTransport();
  const own = await readCredentials(credentials);
  redactKey(own, log);
  if (own.keyIsOpen) warnOfOpenKey(credentials, log);
  return tlsTransport(own);
}

function requireLoopback({ credentials, insecureAnywhere, listen }: CuratorOptions): void {
  if (credentials === undefined && !insecureAnywhere && !isLoopback(listen.host)) {
    throw new UsageError(
      `Cannot listen on ${renderHostPort(listen)} with --insecure: expected an address in 127.0.0.0/8 or ::1`,
      { hint: "Whoever reaches that port can be any node; --insecure-anywhere allows it" },
    );
  }
}

/** Written as a loopback address; a name may mean anything tomorrow. */
function isLoopback(host: string): boolean {
  const address = decodeAddress(host);
  return "text" in address && loopbacks.some((network) => containsAddress(network, address));
}

const loopbacks = [parsePrefix("127.0.0.0/8"), parsePrefix("::1/128")];

function warnOfWhatIsMissing({ credentials, store, insecureAnywhere }: CuratorOptions, log: Logger): void {
  if (credentials === undefined) {
    log.warn(
      insecureAnywhere
        ? "Running without TLS: whoever reaches the port can read the cluster and pose as any node"
        : "Running without TLS: every user of this machine can read the cluster and pose as any node",
    );
  }
  if (store === "memory") log.warn("Nodes are kept in memory only: a restart forgets all of them");
}
