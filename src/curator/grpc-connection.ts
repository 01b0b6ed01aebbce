/**
 * A connection to one Curator over gRPC.
 *
 * Guarantees that a Curator which cannot be reached is given up after 5 s (and 5 s more when its name is slow to be
 * resolved), that one which falls silent (stopped, host gone, packets dropped) is found within 20 s, that none inside
 * ClusterNet is dialled, and that every failure is a CuratorError with the gRPC code. There is no limit here on the
 * wait for an event: a Curator that gathers 20,000 nodes is silent for over a minute.
 *
 * The connection is never made again behind the caller's back: when it is lost its streams end, and
 * curator/follower.ts decides what is tried next, and when.
 */
import { type ChannelOptions, credentials } from "@grpc/grpc-js";
import { lookup } from "node:dns/promises";
import { createChannel, createClient, Metadata } from "nice-grpc";
import { ClientError, Status } from "nice-grpc-common";
import { aborted } from "../async.ts";
import { curatorHost } from "../core/curators.ts";
import type { NodeId } from "../core/node.ts";
import { containsAddress, decodeAddress, type Prefix } from "../core/prefix.ts";
import { quote } from "../core/problem.ts";
import { ClusternetError, CuratorError, messageOf } from "../errors.ts";
import { CuratorLocalDefinition } from "../gen/curator.ts";
import type { CredentialFiles } from "../trust/credential-files.ts";
import { type CuratorConnection, maxEventBytes } from "./connection.ts";
import { byteCuratorDefinition } from "./event-bytes.ts";
import { gather } from "./gather.ts";
import { NodeCredentials, type UntrustedError } from "./tls.ts";
import { describeUnreachable } from "./unreachable.ts";
import { decodeWatchEvents, encodeAnnouncement, encodeStatusReport } from "./wire.ts";

/** Below 1 s the real Curator answers GOAWAY. */
const keepaliveMs = 10_000;
/** With `keepaliveMs` 17 s: a silent Curator is found within 20 s (C4.10) also on a busy machine. */
const keepaliveAnswerMs = 7_000;
/** For the whole attempt: name, TCP, TLS, and the first word of HTTP/2. Before it the name has as long. */
const connectMs = 5_000;
/** An announcement or a status report is answered at once; one that is not is better sent anew. */
const answerMs = 10_000;

/** Events of some 1,000 nodes, which are decoded in a few milliseconds, may wait to be taken together. */
const gatheredBytes = 256 << 10;

const channelOptions: ChannelOptions = {
  "grpc.keepalive_time_ms": keepaliveMs,
  "grpc.keepalive_timeout_ms": keepaliveAnswerMs,
  "grpc.max_receive_message_length": maxEventBytes,
  // Despite its name the limit of a connection attempt: nice-grpc enforces it, since grpc-js knows none.
  "grpc.min_reconnect_backoff_ms": connectMs,
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  "grpc.enable_retries": 0,
  // Connections are shared by all channels to one address otherwise, and with them their failures.
  "grpc.use_local_subchannel_pool": 1,
  // A proxy from the environment is meant for the web, not for the cluster's own control plane.
  "grpc.enable_http_proxy": 0,
  // No TXT look-up beside each name.
  "grpc.service_config_disable_resolution": 1,
};

export interface GrpcOptions {
  /** Who we are: what the Curator is told without TLS, and whose status is kept as own. */
  readonly nodeId: NodeId;
  /** Without: plain text, and the node names itself in the request metadata. */
  readonly tls?: CredentialFiles;
  /** With TLS: only these nodes are accepted as Curators. Default: every node of the cluster. */
  readonly curatorIds?: readonly NodeId[];
  /** With TLS: the Curator must be this node's, which is what following a leader needs. */
  readonly expectedId?: NodeId;
  /** The way to a Curator inside one of these would lead through the mesh. Default: none. */
  readonly clusterNets?: readonly Prefix[];
}

/** A connection to HOST:PORT. It is made when the first call needs it. */
export function connectGrpc(address: string, options: GrpcOptions): CuratorConnection {
  // The scheme is fixed, so that no address is taken for a Unix socket or another resolver.
  const { nodeId, tls, curatorIds, expectedId } = options;
  const secure =
    tls === undefined
      ? undefined
      : new NodeCredentials({
          files: tls,
          self: nodeId,
          handshakeMs: connectMs,
          ...(curatorIds === undefined ? {} : { curatorIds }),
          ...(expectedId === undefined ? {} : { expectedId }),
        });
  const channel = createChannel(`dns:${address}`, secure ?? credentials.createInsecure(), channelOptions);
  const metadata = new Metadata();
  if (secure === undefined) metadata.set("clusternet-node-id", options.nodeId);
  const client = createClient(byteCuratorDefinition, channel, { "*": { metadata } });
  const local = createClient(CuratorLocalDefinition, channel, { "*": { metadata } });
  const wrap = async (doing: string, error: unknown, startedMs: number): Promise<CuratorError> => {
    if (error instanceof CuratorError) return error;
    const refusal = secure?.refusal;
    // Connections are tried again behind our back, so the last refusal need not be what this call failed of.
    if (refusal !== undefined && messageOf(error).includes(`${refusal.name}: `))
      return untrusted(address, refusal);
    // Not from the other side: a message that could not be encoded, or a bug.
    if (!(error instanceof ClientError)) return curatorError(doing, Status.INTERNAL, messageOf(error), error);
    const reason = noConnection(error.details);
    // The ClientError is not kept as cause: it says the same again, with the Curator's text as it came, terminal
    // escapes and all.
    return reason === undefined
      ? curatorError(doing, error.code, error.details)
      : await unreachable(address, reason, performance.now() - startedMs);
  };
  const answered = (
    doing: string,
    signal: AbortSignal,
    run: (signal: AbortSignal) => Promise<unknown>,
  ): Promise<void> =>
    withLimit(
      doing,
      signal,
      async (signal) => {
        await requireOutside();
        await run(signal);
      },
      wrap,
    );

  // Once: the connection is made once, right after it.
  let outside: Promise<void> | undefined;
  const requireOutside = (): Promise<void> => (outside ??= refuseInside(address, options.clusterNets ?? []));

  return {
    address,

    async *watchNodes(signal, onHeaders) {
      await Promise.race([requireOutside(), aborted(signal)]);
      if (signal.aborted) return;
      const startedMs = performance.now();
      const left = new AbortController();
      try {
        const messages = client.watch(
          { kind: { $case: "nodesInCluster", nodesInCluster: {} } },
          {
            signal: AbortSignal.any([signal, left.signal]),
            ...(onHeaders !== undefined && { onHeader: () => onHeaders() }),
          },
        );
        for await (const portion of gather(messages, gatheredBytes)) {
          yield* decodeWatchEvents(portion, options.nodeId);
        }
      } catch (error) {
        if (signal.aborted) return;
        throw await wrap(`watch nodes at Curator "${address}"`, error, startedMs);
      } finally {
        left.abort();
      }
    },

    async *watchLeader(signal) {
      await Promise.race([requireOutside(), aborted(signal)]);
      if (signal.aborted) return;
      const startedMs = performance.now();
      try {
        yield* local.getCurrentLeader({}, { signal });
      } catch (error) {
        if (signal.aborted) return;
        throw await wrap(`ask Curator "${address}" for the leader`, error, startedMs);
      }
    },

    announce(announcement, signal) {
      return answered(`announce to Curator "${address}"`, signal, (signal) =>
        client.updateNodeClusterNetworking(encodeAnnouncement(announcement), { signal }),
      );
    },

    reportStatus(report, signal) {
      return answered(`report status to Curator "${address}"`, signal, (signal) =>
        client.updateNodeStatus(encodeStatusReport(report), { signal }),
      );
    },

    close() {
      channel.close();
    },
  };
}

/**
 * Throws CuratorError when an address of the Curator lies inside one of these (C4.1). A name is resolved for that, and
 * one address inside is enough: which one gRPC would take cannot be told.
 */
async function refuseInside(address: string, clusterNets: readonly Prefix[]): Promise<void> {
  if (clusterNets.length === 0) return;
  const host = curatorHost(address);
  for (const text of "reason" in decodeAddress(host) ? await resolveHost(address, host) : [host]) {
    const found = decodeAddress(text);
    // One that is no plain address, such as a link-local one with its interface, is in no ClusterNet.
    if ("reason" in found) continue;
    const net = clusterNets.find((each) => containsAddress(each, found));
    if (net === undefined) continue;
    const where = text === host ? "it lies" : `it resolves to ${text},`;
    throw new CuratorError(`Cannot use Curator "${address}": ${where} inside ClusterNet ${net.text}`, {
      code: Status.UNAVAILABLE,
      hint: "Give an address outside ClusterNet: the way to the Curator must not lead through the mesh",
    });
  }
}

async function resolveHost(address: string, host: string): Promise<readonly string[]> {
  const startedMs = performance.now();
  const limit = Promise.withResolvers<never>();
  const timer = setTimeout(() => limit.reject(new ClusternetError("EAI_AGAIN: it took too long")), connectMs);
  try {
    // It cannot be stopped: one that hangs goes on behind our back, and its answer is for nobody.
    const found = await Promise.race([lookup(host, { all: true }), limit.promise]);
    return found.map(({ address }) => address);
  } catch (error) {
    throw await unreachable(address, messageOf(error), performance.now() - startedMs);
  } finally {
    clearTimeout(timer);
  }
}

/** Runs one call with a limit on its answer. */
async function withLimit(
  doing: string,
  signal: AbortSignal,
  run: (signal: AbortSignal) => Promise<unknown>,
  wrap: (doing: string, error: unknown, startedMs: number) => Promise<CuratorError>,
): Promise<void> {
  const startedMs = performance.now();
  const limit = AbortSignal.timeout(answerMs);
  try {
    await run(AbortSignal.any([signal, limit]));
  } catch (error) {
    if (signal.aborted) throw curatorError(doing, Status.CANCELLED, "stopped by this program");
    if (!limit.aborted) throw await wrap(doing, error, startedMs);
    throw curatorError(doing, Status.DEADLINE_EXCEEDED, `no answer within ${answerMs / 1000} s`);
  }
}

/** It was this node that ended the connection, before a word of it: no fault of the call. */
function untrusted(address: string, refusal: UntrustedError): CuratorError {
  return new CuratorError(`Cannot trust Curator "${address}": ${refusal.message}`, {
    code: Status.UNAVAILABLE,
    untrusted: true,
    hint: saysOutOfTime.test(refusal.message)
      ? "Renew the Curator's certificate (`clusternet pki issue` makes one), or set the clock of this machine"
      : "Check that this is the address of a Curator of this cluster, and that ca.pem is the cluster's CA",
  });
}

/** Why no connection came about; undefined for an error of a call over one. What grpc-js wraps around it says nothing more. */
function noConnection(details: string): string | undefined {
  const wrapped = /^No connection established\. Last error: (?:\w*Error: )?(.*)\. Resolution note: .*$/s;
  return wrapped.exec(details)?.[1] ?? (details.startsWith("Name resolution failed") ? details : undefined);
}

/** No word was spoken with the Curator. */
async function unreachable(address: string, details: string, tookMs: number): Promise<CuratorError> {
  const { reason, hint } = await describeUnreachable(address, details, tookMs);
  const shown = shownDetailsOf(reason);
  return new CuratorError(`Cannot reach Curator "${address}": ${shown}`, {
    code: Status.UNAVAILABLE,
    details: shown,
    ...(hint !== undefined && { hint }),
  });
}

/** Longest error text of a Curator that is shown; ours names a node of up to 253 characters twice. */
const shownDetails = 1_000;

/** Of a certificate: our words (trust/certificate.ts), and those of Go's library, which Metropolis' Curator hands on. */
const saysOutOfTime = /\bcertificate (?:expired on|is not valid before|has expired or is not yet valid)\b/;

function curatorError(doing: string, code: Status, details: string, cause?: unknown): CuratorError {
  const hint =
    code === Status.UNAUTHENTICATED && saysOutOfTime.test(details)
      ? "Renew this node's certificate (`clusternet pki issue` makes one), or set the clock of the Curator's machine"
      : hints[code];
  // Go's library tells the time of its clock, with which the same thing would be news at every try.
  const shown = shownDetailsOf(details.replace(/\bcurrent time \S+ is\b/, "the time there is"));
  return new CuratorError(`Cannot ${doing}: ${Status[code] ?? `code ${String(code)}`}: ${shown}`, {
    code,
    details: shown,
    ...(cause !== undefined && { cause }),
    ...(hint !== undefined && { hint }),
  });
}

/** Quoted only to make it harmless: the quotes themselves would be noise. */
function shownDetailsOf(details: string): string {
  return quote(details, shownDetails).replace(/^"|"$/g, "").replaceAll('\\"', '"');
}

const hints: Readonly<Partial<Record<Status, string>>> = {
  [Status.UNIMPLEMENTED]:
    "Only the elected leader serves the mesh: give the address of every Curator with --curator",
  [Status.UNAUTHENTICATED]: "Check that the node's certificate is signed by the CA of this cluster",
  [Status.PERMISSION_DENIED]: "Check that the certificate, or --node-id, is this node's own",
};
