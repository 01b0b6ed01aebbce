/**
 * The status as JSON: its schema, and how it is made of what the agent, or a command without an agent, knows.
 *
 * The names are a contract with other programs: a field is added freely, but `schemaVersion` grows when one
 * changes its meaning or goes. `null` is never or unknown, times are RFC 3339 in UTC, peers are sorted by ID.
 */
import * as v from "valibot";
import type { Mesh } from "./core/mesh.ts";
import type { NodeId } from "./core/node.ts";
import { type SeenInterface, type SeenPeer, announcedEndpoint } from "./core/host-state.ts";
import type { PublicKey } from "./core/key.ts";
import type { Address, Prefix } from "./core/prefix.ts";
import type { CuratorState } from "./curator/follower.ts";
import type { Problem } from "./core/problem.ts";
import { ago } from "./table.ts";

/** A peer is connected when its last handshake is younger; WireGuard makes a new one at the latest after 120 s of use. */
const connectedSeconds = 180;

const time = v.nullable(v.pipe(v.string(), v.isoTimestamp()));
const count = v.pipe(v.number(), v.integer(), v.minValue(0));

export const statusSchema = v.object({
  schemaVersion: v.literal(1),
  version: v.string(),
  agent: v.object({
    /** Null: whoever asked may not know. */
    running: v.nullable(v.boolean()),
    pid: v.nullable(count),
    startedAt: time,
    ready: v.boolean(),
    reasons: v.array(v.string()),
    /** An agent of before this field, still running while the program was upgraded, sends none. */
    unhealthy: v.optional(v.array(v.string()), []),
  }),
  node: v.object({
    id: v.nullable(v.string()),
    publicKey: v.nullable(v.string()),
    externalAddress: v.nullable(v.string()),
    /** Null: only a running agent knows what the Curator has taken. */
    announced: v.nullable(v.array(v.string())),
    announcedAt: time,
    /** The Curator says that this node was taken out of the cluster. An agent of before this field sends none. */
    removed: v.optional(v.nullable(v.boolean()), null),
  }),
  curator: v.object({
    state: v.picklist(["connected", "connecting", "none"]),
    address: v.nullable(v.string()),
    since: time,
    fullPicture: v.boolean(),
    lastEventAt: time,
  }),
  source: v.nullable(v.picklist(["curator", "file"])),
  sourceAt: time,
  interface: v.object({
    name: v.string(),
    /** Null: the host could not be looked at. An agent of before this field sends none. */
    present: v.optional(v.nullable(v.boolean()), null),
    implementation: v.nullable(v.picklist(["kernel", "userspace"])),
    listenPort: v.nullable(count),
    mtu: v.nullable(count),
    up: v.boolean(),
  }),
  peers: v.array(
    v.object({
      /** Null: a peer on the interface that no node is known for. */
      id: v.nullable(v.string()),
      publicKey: v.string(),
      endpoint: v.nullable(v.string()),
      prefixes: v.array(v.string()),
      state: v.picklist(["connected", "idle", "never"]),
      latestHandshakeAt: time,
      receivedBytes: count,
      sentBytes: count,
    }),
  ),
  problems: v.array(
    v.object({
      kind: v.string(),
      nodeId: v.nullable(v.string()),
      message: v.string(),
      since: time,
    }),
  ),
});

/** What `clusternet status --json` prints. */
export type Status = v.InferOutput<typeof statusSchema>;
export type StatusPeer = Status["peers"][number];

export interface StatusInput {
  readonly version: string;
  readonly agent: {
    /** Null: it could not be found out. */
    readonly running: boolean | null;
    readonly pid?: number;
    readonly startedAt?: Date;
    /** What is missing, in words, while not ready; empty: ready. */
    readonly notReady: readonly string[];
    /** What is to be known although it is ready, in words; absent or empty: nothing. */
    readonly remarks?: readonly string[];
    /** What hangs, in words; absent or empty: nothing. */
    readonly unhealthy?: readonly string[];
  };
  readonly node: {
    readonly id?: NodeId;
    readonly publicKey?: PublicKey;
    readonly externalAddress?: Address;
    /** As last accepted by the Curator; empty before. Absent: nobody is there who knows. */
    readonly announced?: readonly Prefix[];
    readonly announcedAt?: Date;
    /** The Curator has taken this node out of the cluster, and what it announced with it. */
    readonly removed?: boolean;
  };
  readonly curator: CuratorState;
  /** Where the mesh that is applied comes from; absent: nothing is applied yet. */
  readonly source?: "curator" | "file";
  readonly sourceAt?: Date;
  readonly interfaceName: string;
  /** Absent: there is no such interface. With `interface-foreign` among the problems it is none of ours. */
  readonly interface?: SeenInterface;
  /** The host could not be looked at, so whether there is an interface nobody knows. */
  readonly isHostUnseen?: boolean;
  readonly mesh: Mesh;
  /** UDP port of every peer whose endpoint the interface does not know. */
  readonly listenPort: number;
  /** Without an agent nobody knows since when. */
  readonly problems: readonly (Problem & { readonly since?: Date })[];
  readonly now: Date;
}

/** The remark of an agent whose mesh is that of the last file. */
export function fromFileRemark(writtenAt: Date, now: Date): string {
  const at = writtenAt.toISOString();
  return `the mesh is from the file, as of ${at} (${ago(at, now)}): no full picture has come from a Curator since the start`;
}

/** Before any Curator was asked. */
export const noCurator: CuratorState = { state: "none", fullPicture: false };

export function buildStatus(input: StatusInput): Status {
  const { agent, node, curator, interface: seen } = input;
  // The peers of somebody else's interface are none of this mesh.
  const isForeign = input.problems.some(({ kind }) => kind === "interface-foreign");
  const isRemoved = node.removed === true;
  const ownPeers: OwnPeers = isForeign ? new Map() : (seen?.peers ?? new Map());
  return {
    schemaVersion: 1,
    version: input.version,
    agent: {
      running: agent.running,
      pid: agent.pid ?? null,
      startedAt: timeOf(agent.startedAt),
      ready: agent.running === true && agent.notReady.length === 0,
      reasons: [...agent.notReady, ...(agent.remarks ?? [])],
      unhealthy: [...(agent.unhealthy ?? [])],
    },
    node: {
      id: node.id ?? null,
      publicKey: node.publicKey ?? null,
      externalAddress: node.externalAddress?.text ?? null,
      announced: isRemoved ? [] : (node.announced?.map(({ text }) => text) ?? null),
      announcedAt: isRemoved ? null : timeOf(node.announcedAt),
      removed: node.removed ?? null,
    },
    curator: {
      state: curator.state,
      address: curator.address ?? null,
      since: timeOf(curator.since),
      fullPicture: curator.fullPicture,
      lastEventAt: timeOf(curator.lastEventAt),
    },
    source: input.source ?? null,
    sourceAt: timeOf(input.sourceAt),
    interface: {
      name: input.interfaceName,
      present: input.isHostUnseen === true ? null : seen !== undefined,
      implementation: seen?.implementation ?? null,
      listenPort: seen?.listenPort ?? null,
      mtu: seen?.mtu ?? null,
      up: seen?.up ?? false,
    },
    peers: [...knownPeers(input, ownPeers), ...strangers(input, ownPeers)],
    problems: input.problems.map((problem) => ({
      kind: problem.kind,
      nodeId: problem.nodeId ?? null,
      message: problem.message,
      since: timeOf(problem.since),
    })),
  };
}

type OwnPeers = SeenInterface["peers"];

function knownPeers({ mesh, listenPort, now }: StatusInput, ownPeers: OwnPeers): StatusPeer[] {
  return mesh.peers
    .toSorted((a, b) => (a.nodeId < b.nodeId ? -1 : 1))
    .map((peer) => {
      const onInterface = ownPeers.get(peer.publicKey);
      return {
        id: peer.nodeId,
        publicKey: peer.publicKey,
        endpoint: onInterface?.endpoint ?? announcedEndpoint(peer, listenPort) ?? null,
        prefixes: peer.prefixes.map(({ text }) => text),
        ...trafficOf(onInterface, now),
      };
    });
}

/** Peers that the interface has and the mesh does not: without an agent they may be all there is to show. */
function strangers({ mesh, now }: StatusInput, ownPeers: OwnPeers): StatusPeer[] {
  const known = new Set(mesh.peers.map(({ publicKey }) => publicKey));
  return [...ownPeers]
    .filter(([publicKey]) => !known.has(publicKey))
    .toSorted(([a], [b]) => (a < b ? -1 : 1))
    .map(([publicKey, peer]) => ({
      id: null,
      publicKey,
      endpoint: peer.endpoint ?? null,
      prefixes: [...peer.allowedIps],
      ...trafficOf(peer, now),
    }));
}

function trafficOf(
  peer: SeenPeer | undefined,
  now: Date,
): Pick<StatusPeer, "state" | "latestHandshakeAt" | "receivedBytes" | "sentBytes"> {
  const seconds = peer?.latestHandshakeSeconds ?? 0;
  const ageSeconds = now.getTime() / 1000 - seconds;
  return {
    state: seconds === 0 ? "never" : ageSeconds < connectedSeconds ? "connected" : "idle",
    latestHandshakeAt: seconds === 0 ? null : timeOf(new Date(seconds * 1000)),
    receivedBytes: peer?.receivedBytes ?? 0,
    sentBytes: peer?.sentBytes ?? 0,
  };
}

function timeOf(date: Date | undefined): string | null {
  return date?.toISOString() ?? null;
}
