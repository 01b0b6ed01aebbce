/**
 * The real Curator's recorded events (test/fixtures/watch.json) as core types, made from the decoded JSON beside
 * the bytes: so the node set is tested without the decoder, which has its own test.
 */
import type { Node, NodeId, NodeState } from "../../src/core/node.ts";
import type { NodeEvent } from "../../src/core/node-set.ts";
import fixture from "../fixtures/watch.json";

interface RecordedNode {
  readonly id: string;
  readonly state?: string;
  readonly roles?: Readonly<Record<string, unknown>>;
  readonly status?: {
    readonly external_address?: string;
    readonly running_curator?: { readonly port?: number };
  };
  readonly clusternet?: {
    readonly wireguard_pubkey?: string;
    readonly prefixes?: readonly { readonly cidr?: string }[];
  };
}

interface RecordedEvent {
  readonly nodes?: readonly RecordedNode[];
  readonly node_tombstones?: readonly { readonly node_id: string }[];
  readonly progress?: string;
}

interface RecordedStep {
  readonly stream: number | string;
  readonly events?: readonly { readonly json: RecordedEvent; readonly base64: string }[];
}

function recorded(stream: number): readonly { readonly json: RecordedEvent; readonly base64: string }[] {
  return (fixture.steps as unknown as readonly RecordedStep[])
    .filter((step) => Number(step.stream) === stream)
    .flatMap((step) => step.events ?? []);
}

/** Every event that came on this stream, in order, as it was on the wire. */
export function recordedBytes(stream: number): readonly Uint8Array[] {
  return recorded(stream).map(({ base64 }) => Uint8Array.fromBase64(base64));
}

/** Every event that came on this stream, in order. */
export function recordedEvents(stream: number): readonly NodeEvent[] {
  return recorded(stream).map(({ json }) => ({
    nodes: (json.nodes ?? []).map(toNode),
    tombstones: (json.node_tombstones ?? []).map((tombstone) => tombstone.node_id as NodeId),
    lastBacklogged: json.progress === "PROGRESS_LAST_BACKLOGGED",
  }));
}

function toNode(recorded: RecordedNode): Node {
  const prefixes = (recorded.clusternet?.prefixes ?? []).map((prefix) => prefix.cidr ?? "");
  const port = recorded.status?.running_curator?.port;
  return {
    id: recorded.id as NodeId,
    state: (recorded.state ?? "NODE_STATE_INVALID").replace("NODE_STATE_", "").toLowerCase() as NodeState,
    publicKey: recorded.clusternet?.wireguard_pubkey ?? "",
    externalAddress: recorded.status?.external_address ?? "",
    prefixes,
    prefixCount: prefixes.length,
    consensusMember: recorded.roles?.["consensus_member"] !== undefined,
    ...(port === undefined ? {} : { curatorPort: port }),
  };
}
