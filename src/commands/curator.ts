/**
 * `clusternet curator`: the small Curator of this project, until it is asked to stop.
 *
 * Takes options that are of the right form already (src/settings.ts parsed them) and decides what cannot be
 * used: that is thrown as a ClusternetError whose `exit` is the status to end with.
 */
import { logVerbosity, setLogVerbosity } from "@grpc/grpc-js";
import { join, resolve } from "node:path";
import { systemClock, type Clock } from "../async.ts";
import type { Prefix } from "../core/prefix.ts";
import { startAdminSocket } from "../curator-server/admin.ts";
import { CredentialRenewal } from "../curator-server/credential-renewal.ts";
import {
  insecureTransport,
  renderHostPort,
  startCuratorServer,
  type CuratorServer,
  type Transport,
} from "../curator-server/server.ts";
import type { Registry } from "../curator-server/registry.ts";
import { openSqliteStore } from "../curator-server/sqlite-store.ts";
import { MemoryStore } from "../curator-server/store.ts";
import { tlsTransport } from "../curator-server/tls.ts";
import { describeInLine, exitStatus, type ExitStatus } from "../errors.ts";
import { openDirectoryProblems } from "../host/directory-mode.ts";
import { ensurePrivateDirectory } from "../host/files.ts";
import { acquireDirectoryLock, acquireSoon, type Locks } from "../host/lock.ts";
import type { PrivateServer } from "../host/private-socket.ts";
import type { Logger, RedactingLogger } from "../log.ts";
import { pathsOf, type CredentialFiles } from "../trust/credential-files.ts";
import { readCredentials, redactKey } from "../trust/credentials.ts";

/** How often the data directory is looked at: a node that changes nothing finds out no sooner that it was forgotten. */
const lookMs = 5_000;

/** Flags of `clusternet curator`, parsed. */
export interface CuratorOptions {
  /** `host` as written, without the brackets of an IPv6 address; port 0 takes any free one. */
  readonly listen: { readonly host: string; readonly port: number };
  readonly dataDir: string;
  readonly store: "sqlite" | "memory";
  /** One per address family at most, at least one. */
  readonly clusterNets: readonly Prefix[];
  /** Absent: no TLS. Where such a Curator may listen was settled with the flags. */
  readonly credentials?: CredentialFiles;
  readonly insecureAnywhere: boolean;
}

/** What a command gets from `main` besides its options. */
export interface CuratorContext {
  readonly log: RedactingLogger;
  readonly clock?: Clock;
  /** Aborts when the command is asked to stop (SIGTERM, SIGINT). */
  readonly signal: AbortSignal;
}

/** Serves until `signal` aborts. Throws ClusternetError for what cannot be used. */
export async function runCurator(options: CuratorOptions, context: CuratorContext): Promise<ExitStatus> {
  const { log, signal } = context;
  // grpc-js writes lines of its own on stderr; what matters of them reaches us as errors.
  setLogVerbosity(logVerbosity.NONE);
  const clock = context.clock ?? systemClock;
  const { transport, renewal } = await transportOf(options, { log, clock });
  const dataDirectory = resolve(options.dataDir);
  await ensurePrivateDirectory(dataDirectory);
  const remedy = "One Curator runs per data directory: stop that one, or choose another --data-dir";
  const lock = await acquireSoon(() => acquireDirectoryLock(dataDirectory, remedy), { clock, signal });
  if (lock === undefined) return exitStatus.ok;
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
        dataDirectory,
      });
    } catch (error) {
      store.close();
      throw error;
    }
    try {
      const admin = startAdminSocket(dataDirectory, server.registry);
      warnOfWhatIsMissing(options, log);
      const files = pathsOf(options.credentials);
      for (const { kind, message } of await openDirectoryProblems([dataDirectory], files))
        log.warn(message, { problem: kind });
      log.info("Curator is listening", {
        listen: renderHostPort({ host: options.listen.host, port: server.port }),
        clusterNet: options.clusterNets.map(({ text }) => text).join(", "),
        nodes: server.registry.nodes.length,
        dataDirectory,
        ...(options.credentials === undefined ? {} : { node: transport.leaderId }),
      });
      const parts = { dataDirectory, lock, admin, registry: server.registry, renewal };
      await keepInPlace(parts, { log, clock }, signal);
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

/** What can be taken away or replaced under a running Curator. */
interface Parts {
  readonly dataDirectory: string;
  readonly lock: Locks;
  readonly admin: PrivateServer;
  readonly registry: Registry;
  readonly renewal: CredentialRenewal | undefined;
}

/** Makes again what of it is gone and takes in what is new, now and then until `signal` aborts. What cannot be done is logged once and tried again. */
async function keepInPlace(
  { dataDirectory, lock, admin, registry, renewal }: Parts,
  { log, clock }: { readonly log: Logger; readonly clock: Clock },
  signal: AbortSignal,
): Promise<void> {
  let failure: string | undefined;
  while (!signal.aborted) {
    await clock.sleep(lookMs, signal);
    if (signal.aborted) return;
    await renewal?.look();
    try {
      await ensurePrivateDirectory(dataDirectory);
      lock.renew();
      registry.ensureKept();
      await admin.ensure();
      failure = undefined;
    } catch (error) {
      const message = describeInLine(error);
      if (message !== failure) log.error(message);
      failure = message;
    }
  }
}

async function transportOf(
  { credentials }: CuratorOptions,
  { log, clock }: { readonly log: RedactingLogger; readonly clock: Clock },
): Promise<{ readonly transport: Transport; readonly renewal?: CredentialRenewal }> {
  if (credentials === undefined) return { transport: insecureTransport() };
  const own = await readCredentials(credentials);
  redactKey(own, log);
  const transport = tlsTransport(own);
  const renewal = new CredentialRenewal(credentials, own, { transport, log, clock });
  await renewal.look();
  return { transport, renewal };
}

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
