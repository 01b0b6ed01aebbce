/**
 * Listens for nodes and stops cleanly.
 *
 * How callers connect and how they are known come in together, as `transport`: TLS (tls.ts), or nothing at all.
 */
import { ServerCredentials } from "@grpc/grpc-js";
import { createServer } from "nice-grpc";
import type { Prefix } from "../core/prefix.ts";
import { ClusternetError, exitStatus, messageOf, SettingsError } from "../errors.ts";
import { CuratorLocalDefinition } from "../gen/curator.ts";
import type { Logger } from "../log.ts";
import { identifyInsecureCaller, type IdentifyCaller } from "./caller.ts";
import { paceLargeMessages } from "./pace.ts";
import { Registry } from "./registry.ts";
import { byteCuratorDefinition } from "../curator/event-bytes.ts";
import { curatorLocalService, curatorService } from "./service.ts";
import type { NodeStore } from "./store.ts";

/** How callers connect and how they are known. */
export interface Transport {
  readonly credentials: ServerCredentials;
  readonly identify: IdentifyCaller;
  /** Names this Curator as the leader. */
  readonly leaderId: string;
}

export interface CuratorServerSettings {
  /** `host` without brackets; port 0 takes any free one. */
  readonly listen: { readonly host: string; readonly port: number };
  readonly transport: Transport;
  readonly store: NodeStore;
  readonly clusterNets: readonly Prefix[];
  readonly log: Logger;
  readonly now?: () => number;
  /** Where the operator's commands reach this Curator; default as theirs. */
  readonly dataDirectory?: string;
  /** How soon a watcher that is gone without a word is let go. Default 20 s and 10 s. */
  readonly keepalive?: { readonly timeMs: number; readonly timeoutMs: number };
}

export interface CuratorServer {
  /** The port that is listened on. */
  readonly port: number;
  readonly registry: Registry;
  /** Ends every stream (UNAVAILABLE), waits a moment for calls under way, and closes the store. Never throws. */
  stop(): Promise<void>;
}

/** No TLS: everybody is who he says. */
export function insecureTransport(): Transport {
  return {
    credentials: ServerCredentials.createInsecure(),
    identify: identifyInsecureCaller,
    leaderId: "clusternet-curator",
  };
}

/** Size of a request, as the real Curator's: a larger one is RESOURCE_EXHAUSTED. */
const maxRequestBytes = 4 * 1024 * 1024;
/** Longest wait for calls under way when stopping. */
const stopMs = 2_000;

/** Loads the store and listens. Throws SettingsError; the port in use is exit 69. */
export async function startCuratorServer(settings: CuratorServerSettings): Promise<CuratorServer> {
  const { transport, store, log } = settings;
  const keepalive = settings.keepalive ?? { timeMs: 20_000, timeoutMs: 10_000 };
  const stopping = new AbortController();
  const registry = new Registry({
    store,
    clusterNets: settings.clusterNets,
    log,
    now: settings.now ?? Date.now,
    ...(settings.dataDirectory === undefined ? {} : { dataDirectory: settings.dataDirectory }),
  });
  const server = createServer({
    "grpc.max_receive_message_length": maxRequestBytes,
    "grpc.max_send_message_length": -1,
    // grpc-js answers however many pings of a client; these are our own, to find watchers that are gone.
    "grpc.keepalive_time_ms": keepalive.timeMs,
    "grpc.keepalive_timeout_ms": keepalive.timeoutMs,
    // Two Curators on one port would each know half of the cluster.
    "grpc.so_reuseport": 0,
    interceptors: [paceLargeMessages()],
  });
  let port = 0;
  const service = {
    registry,
    identify: transport.identify,
    log,
    stopping: stopping.signal,
    leader: () => ({
      leaderNodeId: transport.leaderId,
      leaderHost: reachableHost(settings.listen.host),
      leaderPort: port,
      thisNodeId: transport.leaderId,
    }),
  };
  server.add(byteCuratorDefinition, curatorService(service));
  server.add(CuratorLocalDefinition, curatorLocalService(service));
  const address = renderHostPort(settings.listen);
  try {
    port = await server.listen(address, transport.credentials);
  } catch (error) {
    throw listenError(address, error);
  }
  return {
    port,
    registry,
    async stop() {
      stopping.abort();
      registry.fanOut.stop();
      const force = setTimeout(() => server.forceShutdown(), stopMs);
      await server.shutdown().catch(() => {
        // The only error is that it was forced meanwhile.
      });
      clearTimeout(force);
      registry.callerLog.close();
      store.close();
    },
  };
}

/** HOST:PORT, an IPv6 address in brackets. */
export function renderHostPort({ host, port }: { readonly host: string; readonly port: number }): string {
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

/** The host for other machines: none when it listens everywhere, which the protocol spells as empty. */
function reachableHost(host: string): string {
  return host === "0.0.0.0" || host === "::" ? "" : host;
}

interface ListenFailure {
  readonly found: string;
  readonly hint: string;
  readonly isTaken?: boolean;
}

/** By a word of what grpc-js 1.14.7 says, which puts the system's code into a sentence about how many addresses it has tried. */
const listenFailures: readonly (readonly [RegExp, ListenFailure])[] = [
  [
    /\bEADDRINUSE\b/,
    {
      found: "the port is taken",
      hint: "Stop the program that listens there (ss -ltnp shows it to root), or choose another port with --listen",
      isTaken: true,
    },
  ],
  [
    /\bEADDRNOTAVAIL\b/,
    {
      found: "this host does not have the address",
      hint: "Give --listen an address of this host, which `ip address` shows, or start this when it is there",
    },
  ],
  [
    /\bEAFNOSUPPORT\b/,
    {
      found: "this host does not speak the protocol of the address",
      hint: "Give --listen an IPv4 address, or switch IPv6 on",
    },
  ],
  [
    /\b(EACCES|EPERM)\b/,
    {
      found: "this user may not use the port",
      hint: "Run this as root, or choose a port from 1024 on with --listen",
    },
  ],
  [
    /^Name resolution failed|\bE(AI_AGAIN|NOTFOUND)\b/,
    { found: "the name is not known", hint: "Give --listen an address of this host instead of its name" },
  ],
];

function listenError(address: string, error: unknown): ClusternetError {
  const text = messageOf(error);
  const known = listenFailures.find(([pattern]) => pattern.test(text))?.[1];
  if (known === undefined) {
    return new SettingsError(`Cannot listen on ${address}: ${text}`, {
      cause: error,
      hint: "Use an address of this host",
    });
  }
  const { found, hint, isTaken = false } = known;
  // Without the cause: its words say the same again, and of libraries.
  return new ClusternetError(`Cannot listen on ${address}: ${found}`, {
    hint,
    exit: isTaken ? exitStatus.unavailable : exitStatus.settings,
  });
}
