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
import type {
  UpdateNodeClusterNetworkingRequest,
  UpdateNodeStatusRequest,
  WatchEvent,
} from "../gen/curator.ts";
import { WatchEvent_Progress } from "../gen/curator.ts";
import type { DecodedEvent, StatusReport } from "./connection.ts";

/** Of one event this many problems are told apart; an event of 64 MiB has room for millions of bad nodes. */
export const maxProblemsOfEvent = 100;

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
  readFields(last, ({ number, start, end }) => {
    if (number !== statusField.externalAddress && number !== statusField.timestamp) {
      kept.push(last.subarray(start, end));
    }
  });
  return { nodeId: report.nodeId, status: new Uint8Array(Buffer.concat([fresh, ...kept])) };
}

// Field numbers of proto/curator.proto and proto/common.proto.
const nodeField = { id: 1, roles: 2, status: 3, clusternet: 4, state: 5 } as const;
const rolesField = { consensusMember: 2 } as const;
const statusField = { externalAddress: 1, timestamp: 2, runningCurator: 3 } as const;
const runningCuratorField = { port: 1 } as const;
const clusternetField = { publicKey: 1, prefixes: 2 } as const;
const prefixField = { cidr: 1 } as const;

const stateNames: readonly NodeState[] = ["invalid", "new", "standby", "up", "decommissioned"];

interface NodeParts {
  id: string;
  state: number;
  roles?: Uint8Array;
  status?: Uint8Array;
  clusternet?: Uint8Array;
}

/** Reads one node; `status` is its serialized NodeStatus. A node without a usable ID is reported and left out. */
function decodeNode(
  bytes: Uint8Array,
  report: (problem: Problem) => void,
): { node?: Node; status?: Uint8Array | undefined } {
  const parts: NodeParts = { id: "", state: 0 };
  const broken = readFields(bytes, ({ number, value }) => {
    if (number === nodeField.state && typeof value === "number") parts.state = value;
    if (!(value instanceof Uint8Array)) return;
    if (number === nodeField.id) parts.id = textOf(value);
    else if (number === nodeField.roles) parts.roles = value;
    else if (number === nodeField.status) parts.status = value;
    else if (number === nodeField.clusternet) parts.clusternet = value;
  });
  const id = asNodeId(parts.id);
  if (id === undefined) {
    report({ kind: "node-id", message: nodeIdProblem(parts.id) });
    return {};
  }
  // Half a node could be a peer with half of its prefixes; without it the node stays as it was.
  if (broken !== undefined) {
    report({ kind: "node-id", nodeId: id, message: `Cannot read node ${quote(id)}: ${broken}` });
    return {};
  }

  const status = decodeStatus(parts.status);
  if (status.broken !== undefined) {
    const message = `Cannot read status of node ${quote(id)}: ${status.broken}`;
    report({ kind: "address-invalid", nodeId: id, message });
  }
  const announced = decodeClusternet(parts.clusternet);
  if (announced.broken !== undefined) {
    const message = `Cannot read announcement of node ${quote(id)}: ${announced.broken}`;
    report({ kind: "key-invalid", nodeId: id, message });
  }
  return {
    status: parts.status,
    node: {
      id,
      state: stateNames[parts.state] ?? "unknown",
      publicKey: announced.publicKey,
      externalAddress: status.externalAddress,
      prefixes: announced.prefixes,
      prefixCount: announced.prefixCount,
      consensusMember: isConsensusMember(parts.roles),
      ...(status.curatorPort !== undefined && { curatorPort: status.curatorPort }),
    },
  };
}

interface Status {
  externalAddress: string;
  curatorPort?: number;
  broken?: string;
}

function decodeStatus(bytes: Uint8Array | undefined): Status {
  if (bytes === undefined) return { externalAddress: "" };
  const status: Status = { externalAddress: "" };
  let curator: Uint8Array | undefined;
  const broken = readFields(bytes, ({ number, value }) => {
    if (!(value instanceof Uint8Array)) return;
    if (number === statusField.externalAddress) status.externalAddress = textOf(value);
    else if (number === statusField.runningCurator) curator = value;
  });
  if (broken !== undefined) return { externalAddress: "", broken };
  if (curator !== undefined) {
    // Nonsense in here costs the port alone: the address is what the mesh needs.
    readFields(curator, ({ number, value }) => {
      if (number === runningCuratorField.port && typeof value === "number" && value >= 1 && value <= 65_535) {
        status.curatorPort = value;
      }
    });
  }
  return status;
}

interface Clusternet {
  publicKey: string;
  prefixes: string[];
  prefixCount: number;
  broken?: string;
}

function decodeClusternet(bytes: Uint8Array | undefined): Clusternet {
  const clusternet: Clusternet = { publicKey: "", prefixes: [], prefixCount: 0 };
  if (bytes === undefined) return clusternet;
  const broken = readFields(bytes, ({ number, value }) => {
    if (!(value instanceof Uint8Array)) return;
    if (number === clusternetField.publicKey) clusternet.publicKey = textOf(value);
    if (number !== clusternetField.prefixes) return;
    clusternet.prefixCount++;
    if (clusternet.prefixes.length < maxPrefixesOfNode) clusternet.prefixes.push(cidrOf(value));
  });
  return broken === undefined ? clusternet : { publicKey: "", prefixes: [], prefixCount: 0, broken };
}

/** The text of a Prefix; what cannot be read is "", which core reports as malformed like any other text. */
function cidrOf(bytes: Uint8Array): string {
  let cidr = "";
  const broken = readFields(bytes, ({ number, value }) => {
    if (number === prefixField.cidr && value instanceof Uint8Array) cidr = textOf(value);
  });
  return broken === undefined ? cidr : "";
}

function isConsensusMember(bytes: Uint8Array | undefined): boolean {
  let member = false;
  if (bytes === undefined) return member;
  const broken = readFields(bytes, ({ number, value }) => {
    if (number === rolesField.consensusMember && value instanceof Uint8Array) member = true;
  });
  return broken === undefined && member;
}

interface Field {
  readonly number: number;
  /** A number for a varint (its low 32 bits), a view for anything with a length; absent for what no field of ours is. */
  readonly value?: number | Uint8Array;
  /** Where the field, its tag included, stands in the message. */
  readonly start: number;
  readonly end: number;
}

const varint = 0;
const lengthDelimited = 2;

/**
 * Hands every field of a serialized message to `take`, in order. Returns undefined, or what is wrong with the
 * message; then the fields before that place have been taken.
 */
function readFields(bytes: Uint8Array, take: (field: Field) => void): string | undefined {
  const reader = protobuf.Reader.create(bytes);
  try {
    while (reader.pos < reader.len) {
      const start = reader.pos;
      const tag = reader.uint32();
      const number = tag >>> 3;
      const wireType = tag & 7;
      if (number === 0) return `field number 0 at byte ${start}`;
      if (wireType === varint) {
        const value = reader.int32();
        take({ number, value, start, end: reader.pos });
      } else if (wireType === lengthDelimited) {
        const length = reader.uint32();
        const from = reader.pos;
        reader.skip(length);
        take({ number, value: bytes.subarray(from, reader.pos), start, end: reader.pos });
      } else {
        reader.skipType(wireType);
        take({ number, start, end: reader.pos });
      }
    }
    return undefined;
  } catch (error) {
    return messageOf(error);
  }
}

// Only valid UTF-8 is text on the wire; anything else shows as U+FFFD and fails where the text is parsed.
const utf8 = new TextDecoder("utf-8", { ignoreBOM: true });

function textOf(bytes: Uint8Array): string {
  return utf8.decode(bytes);
}
