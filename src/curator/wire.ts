/**
 * Between the protobuf messages of a Curator and our own types.
 *
 * Guarantees that one node's nonsense costs that node only (C4.7): every node of an event, and in it status,
 * announcement and roles, is read by itself, and nothing that stands in them throws. Nodes are read field by
 * field here instead of by generated code, because that gives up a whole message at its first bad byte, and
 * because a status has to go back to the Curator with the fields that we do not know.
 *
 * A field that comes twice counts as it came last; only what no encoder writes differs by that from a merge.
 */
import protobuf from "protobufjs/minimal";
import type { Announcement } from "../core/announcement.ts";
import type { Node, NodeId, NodeState } from "../core/node.ts";
import { asNodeId, maxPrefixesOfNode, nodeIdProblem } from "../core/node.ts";
import type { Problem } from "../core/problem.ts";
import { quote } from "../core/problem.ts";
import { messageOf } from "../errors.ts";
import { NodeStatus } from "../gen/common.ts";
import {
  type UpdateNodeClusterNetworkingRequest,
  type UpdateNodeStatusRequest,
  WatchEvent,
  WatchEvent_Progress,
} from "../gen/curator.ts";
import type { DecodedEvent, StatusReport } from "./connection.ts";

/** Of one event this many problems are told apart; an event of 64 MiB has room for millions of bad nodes. */
export const maxProblemsOfEvent = 100;

/**
 * Reads serialized events that came together, as the fewest events that say the same: each is taken in at the cost of one.
 * Throws at one that is no WatchEvent, after those before it.
 */
export function* decodeWatchEvents(
  messages: readonly Uint8Array[],
  self: NodeId,
): Generator<DecodedEvent, void> {
  let together: DecodedEvent[] = [];
  for (const message of messages) {
    let event: DecodedEvent;
    try {
      event = decodeWatchEvent(WatchEvent.decode(message), self);
    } catch (error) {
      if (together.length > 0) yield joinEvents(together);
      throw error;
    }
    together.push(event);
    if (mayBeFollowed(event)) continue;
    yield joinEvents(together);
    together = [];
  }
  if (together.length > 0) yield joinEvents(together);
}

/** Whether what comes after it may stand in the same event: tombstones are taken in after nodes, and problems end with a node that comes later. */
function mayBeFollowed({ tombstones, lastBacklogged, problems, ended }: DecodedEvent): boolean {
  return tombstones.length === 0 && !lastBacklogged && problems.length === 0 && ended === undefined;
}

/** All but the last have nothing but nodes. */
function joinEvents(events: readonly DecodedEvent[]): DecodedEvent {
  const last = events.at(-1);
  if (last === undefined) throw new Error("there is no event to join");
  if (events.length === 1) return last;
  const selfStatus = events.findLast((event) => event.selfStatus !== undefined)?.selfStatus;
  return {
    ...last,
    nodes: events.flatMap(({ nodes }) => nodes),
    ...(selfStatus !== undefined && { selfStatus }),
  };
}

/** Reads an event. Never throws, whatever its nodes are. */
export function decodeWatchEvent(event: WatchEvent, self: NodeId): DecodedEvent {
  const nodes: Node[] = [];
  const problems: Problem[] = [];
  let untold = 0;
  const report = (problem: Problem): void => {
    if (problems.length < maxProblemsOfEvent) problems.push(problem);
    else untold++;
  };
  let selfStatus: Uint8Array | undefined;

  for (const bytes of event.nodes) {
    const { node, status } = decodeNode(bytes, report);
    if (node === undefined) continue;
    nodes.push(node);
    // A copy: what comes from the stream is a view that would keep the whole event in memory.
    if (node.id === self && status !== undefined) selfStatus = new Uint8Array(status);
  }
  if (untold > 0) {
    problems.push({
      kind: "node-id",
      message: `Cannot use ${untold} more nodes or parts of nodes of the same event`,
    });
  }

  const ended = event.nodeTombstones.flatMap(({ nodeId }) =>
    asNodeId(nodeId) === undefined ? nodeIdProblem(nodeId) : [],
  );
  return {
    nodes,
    // A node whose ID is none was never taken in, so there is nothing to take out but the report of it.
    tombstones: event.nodeTombstones.flatMap(({ nodeId }) => asNodeId(nodeId) ?? []),
    lastBacklogged: event.progress === WatchEvent_Progress.LAST_BACKLOGGED,
    problems,
    ...(ended.length > 0 && { ended }),
    ...(selfStatus !== undefined && { selfStatus }),
  };
}

/** The announcement as a request. */
export function encodeAnnouncement(announcement: Announcement): UpdateNodeClusterNetworkingRequest {
  return {
    clusternet: {
      wireguardPubkey: announcement.publicKey,
      prefixes: announcement.prefixes.map(({ text }) => ({ cidr: text })),
    },
  };
}

/** The report as a request: new address and time, and the rest of the last status byte for byte. */
export function encodeStatusReport(report: StatusReport): UpdateNodeStatusRequest {
  const ms = report.time.getTime();
  const seconds = Math.floor(ms / 1000);
  const fresh = NodeStatus.encode({
    externalAddress: report.externalAddress.text,
    timestamp: { seconds: BigInt(seconds), nanos: (ms - seconds * 1000) * 1_000_000 },
    runningCurator: undefined,
    bootId: new Uint8Array(),
  }).finish();

  const last = report.lastStatus ?? new Uint8Array();
  const kept: Uint8Array[] = [];
  // A last status that ends in nonsense is sent back as far as it can be told apart.
  const reader = readerOf(last);
  readFields(reader, (tag, start) => {
    reader.skipType(tag & 7);
    if (!reportedFields.has(tag >>> 3)) kept.push(last.subarray(start, reader.pos));
    return true;
  });
  return { nodeId: report.nodeId, status: new Uint8Array(Buffer.concat([fresh, ...kept])) };
}

/** How a field is written on the wire. */
const varint = 0;
const lengthDelimited = 2;
/** What stands before a field: its number, and how it is written. */
const tagOf = (number: number, wireType: number): number => (number << 3) | wireType;

// Field numbers of proto/curator.proto and proto/common.proto.
const nodeTag = {
  id: tagOf(1, lengthDelimited),
  roles: tagOf(2, lengthDelimited),
  status: tagOf(3, lengthDelimited),
  clusternet: tagOf(4, lengthDelimited),
  state: tagOf(5, varint),
} as const;
const consensusMemberTag = tagOf(2, lengthDelimited);
const statusTag = {
  externalAddress: tagOf(1, lengthDelimited),
  runningCurator: tagOf(3, lengthDelimited),
} as const;
/** Of a status, address and time: what a report says anew. */
const reportedFields: ReadonlySet<number> = new Set([1, 2]);
const portTag = tagOf(1, varint);
const clusternetTag = { publicKey: tagOf(1, lengthDelimited), prefixes: tagOf(2, lengthDelimited) } as const;
const cidrTag = tagOf(1, lengthDelimited);

const stateNames: readonly NodeState[] = ["invalid", "new", "standby", "up", "decommissioned"];

/** Reads one node; `status` is its serialized NodeStatus. A node without a usable ID is reported and left out. */
function decodeNode(
  bytes: Uint8Array,
  report: (problem: Problem) => void,
): { node?: Node; status?: Uint8Array | undefined } {
  const reader = readerOf(bytes);
  let text = "";
  let state = 0;
  let consensusMember = false;
  let status = noStatus;
  let announced = noClusternet;
  const broken = readFields(reader, (tag) => {
    if (tag === nodeTag.id) text = reader.string();
    else if (tag === nodeTag.roles) consensusMember = decodeRoles(reader);
    else if (tag === nodeTag.status) status = decodeStatus(reader);
    else if (tag === nodeTag.clusternet) announced = decodeClusternet(reader);
    else if (tag === nodeTag.state) state = reader.int32();
    else return false;
    return true;
  });
  const id = asNodeId(text);
  if (id === undefined) {
    report({ kind: "node-id", message: nodeIdProblem(text) });
    return {};
  }
  // Half a node could be a peer with half of its prefixes; without it the node stays as it was.
  if (broken !== undefined) {
    report({ kind: "node-id", nodeId: id, message: `Cannot use node ${quote(id)}: ${undecoded(broken)}` });
    return {};
  }
  if (status.broken !== undefined) {
    const message = `Cannot use status of node ${quote(id)}: ${undecoded(status.broken)}`;
    report({ kind: "address-invalid", nodeId: id, message });
  }
  if (announced.broken !== undefined) {
    const message = `Cannot use announcement of node ${quote(id)}: ${undecoded(announced.broken)}`;
    report({ kind: "key-invalid", nodeId: id, message });
  }
  const { publicKey, prefixes, prefixCount } = announced;
  const node: Node = {
    id,
    state: stateNames[state] ?? "unknown",
    publicKey,
    externalAddress: status.externalAddress,
    prefixes,
    prefixCount,
    consensusMember,
  };
  const { curatorPort, range } = status;
  return {
    status: range === undefined ? undefined : bytes.subarray(range.from, range.to),
    node: curatorPort === undefined ? node : { ...node, curatorPort },
  };
}

/** For an operator; what the decoder says helps only who looks for the fault in that node. */
function undecoded(broken: string): string {
  return `it cannot be decoded (${broken})`;
}

interface Status {
  readonly externalAddress: string;
  readonly curatorPort?: number | undefined;
  readonly broken?: string | undefined;
  /** Where it stands in the bytes of its node. */
  readonly range?: Part;
}

const noStatus: Status = { externalAddress: "" };

function decodeStatus(reader: protobuf.Reader): Status {
  let externalAddress = "";
  let curatorPort: number | undefined;
  const range = readPart(reader, (tag) => {
    if (tag === statusTag.externalAddress) externalAddress = reader.string();
    // Nonsense in here costs the port alone: the address is what the mesh needs.
    else if (tag === statusTag.runningCurator) curatorPort = decodePort(reader);
    else return false;
    return true;
  });
  const { broken } = range;
  return broken === undefined ? { externalAddress, curatorPort, range } : { ...noStatus, broken, range };
}

function decodePort(reader: protobuf.Reader): number | undefined {
  let port: number | undefined;
  const { broken } = readPart(reader, (tag) => {
    if (tag !== portTag) return false;
    const value = reader.int32();
    if (value >= 1 && value <= 65_535) port = value;
    return true;
  });
  return broken === undefined ? port : undefined;
}

interface Clusternet {
  readonly publicKey: string;
  readonly prefixes: readonly string[];
  readonly prefixCount: number;
  readonly broken?: string | undefined;
}

const noClusternet: Clusternet = { publicKey: "", prefixes: [], prefixCount: 0 };

function decodeClusternet(reader: protobuf.Reader): Clusternet {
  let publicKey = "";
  const prefixes: string[] = [];
  let prefixCount = 0;
  const { broken } = readPart(reader, (tag) => {
    if (tag === clusternetTag.publicKey) {
      publicKey = reader.string();
      return true;
    }
    if (tag !== clusternetTag.prefixes) return false;
    prefixCount++;
    if (prefixes.length >= maxPrefixesOfNode) return false;
    prefixes.push(decodeCidr(reader));
    return true;
  });
  return broken === undefined ? { publicKey, prefixes, prefixCount } : { ...noClusternet, broken };
}

/** The text of a Prefix; what cannot be read is "", which core reports as malformed like any other text. */
function decodeCidr(reader: protobuf.Reader): string {
  let cidr = "";
  const { broken } = readPart(reader, (tag) => {
    if (tag !== cidrTag) return false;
    cidr = reader.string();
    return true;
  });
  return broken === undefined ? cidr : "";
}

/** Whether they name a consensus member. */
function decodeRoles(reader: protobuf.Reader): boolean {
  let member = false;
  const { broken } = readPart(reader, (tag) => {
    if (tag === consensusMemberTag) member = true;
    return false;
  });
  return broken === undefined && member;
}

/** Its texts are what is valid UTF-8; anything else shows as U+FFFD and fails where the text is parsed. */
function readerOf(bytes: Uint8Array): protobuf.Reader {
  // Texts of a Buffer are read by the runtime, not character by character.
  const buffer = Buffer.isBuffer(bytes)
    ? bytes
    : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  return protobuf.Reader.create(buffer);
}

/** Takes a field, the reader being right behind its tag. False: it is none of ours, and still to be skipped. */
type TakeField = (tag: number, start: number) => boolean;

/**
 * Hands every field up to the reader's end to `take`, in order. Returns undefined, or what is wrong with the message;
 * then the fields before that place have been taken.
 */
function readFields(reader: protobuf.Reader, take: TakeField): string | undefined {
  try {
    while (reader.pos < reader.len) {
      const start = reader.pos;
      const tag = reader.uint32();
      if (tag >>> 3 === 0) return `field number 0 at byte ${start}`;
      if (!take(tag, start)) reader.skipType(tag & 7);
    }
    return undefined;
  } catch (error) {
    return messageOf(error);
  }
}

/** A message inside another one. */
interface Part {
  readonly from: number;
  readonly to: number;
  readonly broken?: string | undefined;
}

/**
 * As `readFields` for the message that begins here with its length. What is wrong with it stays in it: the reader is
 * behind it afterwards. Throws when it is longer than what it stands in.
 */
function readPart(reader: protobuf.Reader, take: TakeField): Part {
  const length = reader.uint32();
  const from = reader.pos;
  const end = reader.len;
  reader.skip(length);
  const to = reader.pos;
  reader.pos = from;
  reader.len = to;
  const broken = readFields(reader, take);
  reader.pos = to;
  reader.len = end;
  return { from, to, broken };
}
