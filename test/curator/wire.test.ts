/**
 * The wire against what the real Curator sent and took (fixtures), and against bytes that no Curator would send.
 */
import { describe, expect, test } from "bun:test";
import { assert, nat, property, uint8Array } from "fast-check";
import protobuf from "protobufjs/minimal";
import type { PublicKey } from "../../src/core/key.ts";
import { nodeIdProblem, type NodeId } from "../../src/core/node.ts";
import { parseAddress } from "../../src/core/prefix.ts";
import {
  decodeWatchEvent,
  decodeWatchEvents,
  encodeAnnouncement,
  encodeStatusReport,
  maxProblemsOfEvent,
} from "../../src/curator/wire.ts";
import { NodeStatus } from "../../src/gen/common.ts";
import {
  Node,
  UpdateNodeClusterNetworkingRequest,
  UpdateNodeStatusRequest,
  WatchEvent,
  type WatchEvent_Progress,
} from "../../src/gen/curator.ts";
import { event, node } from "../fakes/curator.ts";
import updates from "../fixtures/update-clusternet.json";
import recording from "../fixtures/watch.json";
import { timed } from "../lab/usage.ts";

const self = "self" as NodeId;

function decode(bytes: Uint8Array, as: NodeId = self): ReturnType<typeof decodeWatchEvent> {
  return decodeWatchEvent(WatchEvent.decode(bytes), as);
}

/** A field with a length, as it stands in a message. */
function field(number: number, value: Uint8Array | string): Uint8Array {
  const writer = protobuf.Writer.create().uint32((number << 3) | 2);
  return (typeof value === "string" ? writer.string(value) : writer.bytes(value)).finish();
}

function join(...parts: readonly Uint8Array[]): Uint8Array {
  return new Uint8Array(Buffer.concat(parts));
}

interface RecordedEvent {
  readonly base64: string;
  readonly json: {
    readonly nodes?: readonly {
      readonly id: string;
      readonly state?: string;
      readonly roles?: { readonly consensus_member?: object };
      readonly status?: {
        readonly external_address?: string;
        readonly running_curator?: { readonly port?: number };
        readonly timestamp?: string;
      };
      readonly clusternet?: {
        readonly wireguard_pubkey?: string;
        readonly prefixes?: readonly { readonly cidr?: string }[];
      };
    }[];
    readonly node_tombstones?: readonly { readonly node_id: string }[];
    readonly progress?: string;
  };
}

const recorded = recording.steps.flatMap((step, at) =>
  ((step as { events?: readonly RecordedEvent[] }).events ?? [])
    .filter((each) => each.base64 !== undefined)
    .map((each, index) => ({ name: `step ${at}, event ${index} (${step.name})`, ...each })),
);

describe("the real Curator's events", () => {
  test("are all here", () => {
    expect(recorded).toHaveLength(22);
  });

  test.each(recorded)("decodeWatchEvent() reads $name as its json says", ({ base64, json }) => {
    expect(decode(Uint8Array.fromBase64(base64))).toEqual({
      nodes: (json.nodes ?? []).map((each) => ({
        id: each.id as NodeId,
        state: (each.state ?? "NODE_STATE_INVALID").replace("NODE_STATE_", "").toLowerCase() as "up",
        publicKey: each.clusternet?.wireguard_pubkey ?? "",
        externalAddress: each.status?.external_address ?? "",
        prefixes: (each.clusternet?.prefixes ?? []).map(({ cidr }) => cidr ?? ""),
        prefixCount: each.clusternet?.prefixes?.length ?? 0,
        consensusMember: each.roles?.consensus_member !== undefined,
        ...(each.status?.running_curator?.port !== undefined && {
          curatorPort: each.status.running_curator.port,
        }),
      })),
      tombstones: (json.node_tombstones ?? []).map(({ node_id }) => node_id as NodeId),
      lastBacklogged: json.progress === "PROGRESS_LAST_BACKLOGGED",
      problems: [],
    });
  });

  const withStatus = recorded.flatMap(({ base64, json }) =>
    (json.nodes ?? [])
      .filter(({ status }) => status !== undefined)
      .map(({ id, status }) => ({ base64, id, status })),
  );
  test.each(withStatus)("decodeWatchEvent() hands out the status of $id whole", ({ base64, id, status }) => {
    const { selfStatus } = decode(Uint8Array.fromBase64(base64), id as NodeId);
    const decoded = NodeStatus.decode(selfStatus ?? new Uint8Array());
    expect(decoded.externalAddress).toBe(status?.external_address ?? "");
    const { seconds, nanos } = decoded.timestamp ?? { seconds: 0n, nanos: 0 };
    const fraction = String(nanos).padStart(9, "0").replace(/0+$/, "");
    const time = new Date(Number(seconds) * 1000).toISOString().replace(".000Z", "");
    expect(`${time}${fraction === "" ? "" : `.${fraction}`}Z`).toBe(
      status?.timestamp ?? "1970-01-01T00:00:00Z",
    );
  });
});

const announcements = updates.update_node_cluster_networking.flatMap(({ name, request, request_base64 }) =>
  request_base64 === undefined || request === undefined ? [] : [{ name, request, request_base64 }],
);

describe("events that come together", () => {
  const broken = join(node({ id: "b" }), field(3, "x"), new Uint8Array([0x22, 0x7f]));
  const cases = [
    { name: "none", events: [], want: [] },
    {
      name: "nodes as one event, up to tombstones, a full picture or the end",
      events: [
        event({ nodes: [node({ id: "a" })] }),
        event({ nodes: [node({ id: "b" })], tombstones: ["a"] }),
        event({ nodes: [node({ id: "a" })] }),
        event({ nodes: [node({ id: "c" })], last: true }),
        event({ nodes: [node({ id: "c" }), node({ id: "d" })] }),
        event({ nodes: [node({ id: "c" })] }),
      ],
      want: ["a b -a", "a c last", "c d c"],
    },
    {
      name: "a tombstone before the node that comes again",
      events: [event({ tombstones: ["a"] }), event({ nodes: [node({ id: "a" })] })],
      want: ["-a", "a"],
    },
    {
      name: "a node that cannot be read before the same node that can",
      events: [event({ nodes: [broken] }), event({ nodes: [node({ id: "b" })] })],
      want: ["b!", "b"],
    },
    {
      name: "this node's status as it came last",
      events: [
        event({ nodes: [node({ id: "self", address: "192.0.2.1" })] }),
        event({ nodes: [node({ id: "self", address: "192.0.2.22" })] }),
        event({ nodes: [node({ id: "b" })] }),
      ],
      want: ["self self b 192.0.2.22"],
    },
  ];
  test.each(cases)("decodeWatchEvents() gives $name", ({ events, want }) => {
    const found = [...decodeWatchEvents(events, self)].map((each) =>
      [
        ...each.nodes.map(({ id }) => id),
        ...each.problems.map(({ nodeId }) => `${nodeId}!`),
        ...each.tombstones.map((id) => `-${id}`),
        ...(each.lastBacklogged ? ["last"] : []),
        ...(each.selfStatus === undefined ? [] : [NodeStatus.decode(each.selfStatus).externalAddress]),
      ].join(" "),
    );
    expect(found).toEqual(want);
  });
});

describe("the requests that were sent to the real Curator", () => {
  test.each(announcements)("an announcement with $name is the same bytes", ({ request, request_base64 }) => {
    const bytes = Uint8Array.fromBase64(request_base64);
    const message = UpdateNodeClusterNetworkingRequest.decode(bytes);
    const wanted = (
      request as { clusternet?: { wireguard_pubkey?: string; prefixes?: { cidr?: string }[] } } | null
    )?.clusternet;
    expect(message.clusternet).toEqual(
      wanted && {
        wireguardPubkey: wanted.wireguard_pubkey ?? "",
        prefixes: (wanted.prefixes ?? []).map(({ cidr }) => ({ cidr: cidr ?? "" })),
      },
    );
    expect(UpdateNodeClusterNetworkingRequest.encode(message).finish().toBase64()).toBe(request_base64);
    if (message.clusternet === undefined) return;
    const announcement = {
      publicKey: message.clusternet.wireguardPubkey as PublicKey,
      prefixes: message.clusternet.prefixes.map(
        ({ cidr }) => ({ family: 4, a: 0, b: 0, c: 0, d: 0, length: 0, text: cidr }) as const,
      ),
    };
    expect(
      UpdateNodeClusterNetworkingRequest.encode(encodeAnnouncement(announcement)).finish().toBase64(),
    ).toBe(request_base64);
  });

  test.each(updates.update_node_status)(
    "a status report with $name is the same bytes",
    ({ request, request_base64 }) => {
      const message = UpdateNodeStatusRequest.decode(Uint8Array.fromBase64(request_base64));
      expect(message.nodeId).toBe(request.node_id ?? "");
      expect(message.status && NodeStatus.decode(message.status).externalAddress).toBe(
        request.status && (request.status.external_address ?? ""),
      );
      expect(UpdateNodeStatusRequest.encode(message).finish().toBase64()).toBe(request_base64);
    },
  );
});

const good = node({
  id: "good",
  key: "K",
  address: "192.0.2.1",
  prefixes: ["10.192.1.0/24"],
  curatorPort: 7835,
});
const goodNode = {
  id: "good" as NodeId,
  state: "up",
  publicKey: "K",
  externalAddress: "192.0.2.1",
  prefixes: ["10.192.1.0/24"],
  prefixCount: 1,
  consensusMember: false,
  curatorPort: 7835,
} as const;
const bare = {
  id: "bad" as NodeId,
  state: "invalid",
  publicKey: "",
  externalAddress: "",
  prefixes: [],
  prefixCount: 0,
  consensusMember: false,
} as const;
const id = field(1, "bad");
const address = field(1, "192.0.2.2");
const deepGroups = new Uint8Array(20_000).fill((15 << 3) | 3);

/** What becomes of a node whose bytes are nonsense; `node` absent: left out. */
const nonsense: readonly {
  readonly name: string;
  readonly bytes: Uint8Array;
  readonly node?: object;
  readonly problems?: readonly string[];
}[] = [
  {
    name: "no bytes at all",
    bytes: new Uint8Array(),
    problems: [
      'node-id -: Cannot use node with ID "": expected 1 to 253 printable ASCII characters without spaces',
    ],
  },
  {
    name: "an ID with a new line and a terminal escape",
    bytes: field(1, "x\n[Peer]\u001B[2J"),
    problems: [
      'node-id -: Cannot use node with ID "x\\u{a}[Peer]\\u{1b}[2J": expected 1 to 253 printable ASCII characters without spaces',
    ],
  },
  {
    name: "an ID of bad UTF-8",
    bytes: field(1, new Uint8Array([0x61, 0xff])),
    problems: [
      'node-id -: Cannot use node with ID "a\\u{fffd}": expected 1 to 253 printable ASCII characters without spaces',
    ],
  },
  {
    name: "an ID of 254 characters",
    bytes: field(1, "n".repeat(254)),
    problems: [
      `node-id -: Cannot use node with ID "${"n".repeat(80)}…" (254 characters): expected 1 to 253 printable ASCII characters without spaces`,
    ],
  },
  {
    name: "a byte order mark before the ID",
    bytes: field(1, "\uFEFFbad"),
    problems: [
      'node-id -: Cannot use node with ID "\\u{feff}bad": expected 1 to 253 printable ASCII characters without spaces',
    ],
  },
  {
    name: "an ID of the wrong wire type",
    bytes: new Uint8Array([(1 << 3) | 0, 7]),
    problems: [
      'node-id -: Cannot use node with ID "": expected 1 to 253 printable ASCII characters without spaces',
    ],
  },
  { name: "an ID alone", bytes: id, node: bare },
  {
    name: "a length past the end of the node",
    bytes: join(id, new Uint8Array([(4 << 3) | 2, 100, 1])),
    problems: ['node-id bad: Cannot use node "bad": it cannot be decoded (index out of range: 7 + 100 > 8)'],
  },
  {
    name: "a tag of 0",
    bytes: join(id, new Uint8Array([0, 0])),
    problems: ['node-id bad: Cannot use node "bad": it cannot be decoded (field number 0 at byte 5)'],
  },
  {
    name: "groups nested 20,000 deep",
    bytes: join(id, deepGroups),
    problems: ['node-id bad: Cannot use node "bad": it cannot be decoded (max depth exceeded)'],
  },
  {
    name: "a group that is whole",
    bytes: join(id, new Uint8Array([(15 << 3) | 3, (15 << 3) | 4])),
    node: bare,
  },
  {
    name: "a port behind which an illegal field comes",
    bytes: join(
      id,
      field(3, join(field(1, "192.0.2.9"), field(3, new Uint8Array([0x08, 0x9b, 0x3d, 0x07])))),
    ),
    node: { ...bare, externalAddress: "192.0.2.9" },
  },
  {
    name: "an unknown state",
    bytes: join(id, new Uint8Array([(5 << 3) | 0, 99])),
    node: { ...bare, state: "unknown" },
  },
  {
    name: "a state of ten bytes below zero",
    bytes: join(id, new Uint8Array([(5 << 3) | 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1])),
    node: { ...bare, state: "unknown" },
  },
  {
    name: "a status cut short",
    bytes: join(id, field(3, join(address, new Uint8Array([(9 << 3) | 2, 50]))), field(4, field(1, "K"))),
    node: { ...bare, publicKey: "K" },
    problems: [
      'address-invalid bad: Cannot use status of node "bad": it cannot be decoded (index out of range: 20 + 50 > 20)',
    ],
  },
  {
    name: "a time of 2^63 - 1 seconds",
    bytes: join(
      id,
      field(3, join(address, field(2, new Uint8Array([8, 255, 255, 255, 255, 255, 255, 255, 255, 127])))),
    ),
    node: { ...bare, externalAddress: "192.0.2.2" },
  },
  {
    name: "a time that is no message",
    bytes: join(id, field(3, join(address, field(2, new Uint8Array([255, 255]))))),
    node: { ...bare, externalAddress: "192.0.2.2" },
  },
  {
    name: "an address of bad UTF-8",
    bytes: join(id, field(3, field(1, new Uint8Array([0xc3])))),
    node: { ...bare, externalAddress: "\uFFFD" },
  },
  {
    name: "a Curator's port that is none",
    bytes: join(id, field(3, join(address, field(3, new Uint8Array([8, 128, 128, 4]))))),
    node: { ...bare, externalAddress: "192.0.2.2" },
  },
  {
    name: "a Curator that is no message",
    bytes: join(id, field(3, join(address, field(3, new Uint8Array([255]))))),
    node: { ...bare, externalAddress: "192.0.2.2" },
  },
  {
    name: "an announcement cut short",
    bytes: join(id, field(3, address), field(4, join(field(1, "K"), new Uint8Array([(2 << 3) | 2, 9])))),
    node: { ...bare, externalAddress: "192.0.2.2" },
    problems: [
      'key-invalid bad: Cannot use announcement of node "bad": it cannot be decoded (index out of range: 25 + 9 > 25)',
    ],
  },
  {
    name: "a prefix that is no message among others",
    bytes: join(
      id,
      field(
        4,
        join(
          field(2, field(1, "10.192.1.0/24")),
          field(2, new Uint8Array([255])),
          field(2, field(1, "10.192.2.0/24")),
        ),
      ),
    ),
    node: { ...bare, prefixes: ["10.192.1.0/24", "", "10.192.2.0/24"], prefixCount: 3 },
  },
  {
    name: "5,000 prefixes",
    bytes: join(
      id,
      field(4, join(...Array.from({ length: 5000 }, () => field(2, field(1, "10.192.1.0/24"))))),
    ),
    node: { ...bare, prefixes: Array.from({ length: 1024 }, () => "10.192.1.0/24"), prefixCount: 5000 },
  },
  {
    name: "a status and an announcement twice: the last counts",
    bytes: join(
      id,
      field(3, field(1, "192.0.2.9")),
      field(4, field(1, "L")),
      field(3, address),
      field(4, field(1, "K")),
    ),
    node: { ...bare, externalAddress: "192.0.2.2", publicKey: "K" },
  },
  {
    name: "roles that name a consensus member",
    bytes: join(id, field(2, field(2, new Uint8Array()))),
    node: { ...bare, consensusMember: true },
  },
  {
    name: "roles that are no message",
    bytes: join(id, field(2, join(field(2, ""), new Uint8Array([7])))),
    node: bare,
  },
];

describe("a node's nonsense costs that node only", () => {
  test.each(nonsense)(
    "decodeWatchEvent() with a node that has $name",
    ({ bytes, node: wanted, problems }) => {
      const last = node({ id: "last" });
      const seen = decode(event({ nodes: [good, bytes, last], tombstones: ["gone"], last: true }));
      expect({
        ...seen,
        problems: seen.problems.map(({ kind, nodeId, message }) => `${kind} ${nodeId ?? "-"}: ${message}`),
      }).toEqual({
        nodes: [
          goodNode,
          ...(wanted === undefined ? [] : [wanted as typeof goodNode]),
          { ...bare, id: "last" as NodeId, state: "up" },
        ],
        tombstones: ["gone" as NodeId],
        lastBacklogged: true,
        problems: [...(problems ?? [])],
      });
    },
  );

  test("decodeWatchEvent() takes any bytes for a node without harm to its neighbours", () => {
    assert(
      property(uint8Array({ maxLength: 200 }), (bytes) => {
        const { nodes, lastBacklogged } = decode(event({ nodes: [good, bytes, good], last: true }));
        expect(nodes.at(0)).toEqual(goodNode);
        expect(nodes.at(-1)).toEqual(goodNode);
        expect(lastBacklogged).toBe(true);
      }),
      { numRuns: 2000 },
    );
  });

  test("decodeWatchEvent() takes any damage to a real node without harm to its neighbours", () => {
    assert(
      property(nat(good.length - 1), uint8Array({ minLength: 1, maxLength: 4 }), (at, bytes) => {
        const damaged = join(good.subarray(0, at), bytes, good.subarray(at + bytes.length));
        const { nodes } = decode(event({ nodes: [good, damaged, good] }));
        expect([nodes.at(0), nodes.at(-1)]).toEqual([goodNode, goodNode]);
      }),
      { numRuns: 2000 },
    );
  });

  test("decodeWatchEvent() tells some of very many problems and counts the rest", () => {
    const { nodes, problems } = decode(
      event({ nodes: [...Array.from({ length: 100_000 }, () => new Uint8Array()), good] }),
    );
    expect(nodes).toEqual([goodNode]);
    expect(problems).toHaveLength(maxProblemsOfEvent + 1);
    expect(problems.at(-1)?.message).toBe("Cannot use 99900 more nodes or parts of nodes of the same event");
  });

  test("decodeWatchEvent() leaves out a tombstone of what can be no node", () => {
    const decoded = decode(event({ tombstones: ["", "a b", "a"] }));
    expect(decoded.tombstones).toEqual(["a" as NodeId]);
    // The very words of the report that they end.
    expect(decoded.ended).toEqual([nodeIdProblem(""), nodeIdProblem("a b")]);
  });

  test("a node that is declared whole reads the same by the generated code", () => {
    expect(Node.decode(good)).toMatchObject({
      id: "good",
      clusternet: { wireguardPubkey: "K", prefixes: [{ cidr: "10.192.1.0/24" }] },
    });
  });
});

describe("a status report", () => {
  const externalAddress = parseAddress("192.0.2.77");
  const time = new Date("2026-12-01T10:00:00.250Z");
  const fresh = NodeStatus.encode({
    externalAddress: "192.0.2.77",
    timestamp: { seconds: BigInt(Date.parse("2026-12-01T10:00:00Z") / 1000), nanos: 250_000_000 },
    runningCurator: undefined,
    bootId: new Uint8Array(),
  }).finish();
  const unknown = join(
    field(4, "a version"),
    field(99, "from the future"),
    new Uint8Array([(12 << 3) | 0, 1]),
  );
  const group = new Uint8Array([(13 << 3) | 3, (13 << 3) | 4]);

  const cases: readonly {
    readonly name: string;
    readonly lastStatus?: Uint8Array;
    readonly rest: Uint8Array;
  }[] = [
    { name: "nothing before", rest: new Uint8Array() },
    { name: "an old address and time", lastStatus: join(address, field(2, "")), rest: new Uint8Array() },
    {
      name: "fields we know and do not know around them",
      lastStatus: join(
        unknown,
        address,
        field(3, new Uint8Array([8, 1])),
        field(2, ""),
        field(5, "boot"),
        group,
      ),
      rest: join(unknown, field(3, new Uint8Array([8, 1])), field(5, "boot"), group),
    },
    {
      name: "a last status that ends in nonsense",
      lastStatus: join(unknown, new Uint8Array([255])),
      rest: unknown,
    },
  ];

  test.each(cases)("encodeStatusReport() with $name", ({ lastStatus, rest }) => {
    expect(
      encodeStatusReport({
        nodeId: self,
        externalAddress,
        time,
        ...(lastStatus !== undefined && { lastStatus }),
      }),
    ).toEqual({ nodeId: "self", status: join(fresh, rest) });
  });

  test("decodeWatchEvent() copies this node's status out of the event", () => {
    const bytes = event({ nodes: [good, node({ id: "self", address: "192.0.2.3", seconds: 1n << 62n })] });
    const { selfStatus } = decode(Buffer.from(bytes));
    expect(selfStatus?.buffer.byteLength).toBe(selfStatus?.length ?? -1);
    expect(NodeStatus.decode(selfStatus ?? new Uint8Array())).toMatchObject({
      externalAddress: "192.0.2.3",
      timestamp: { seconds: 1n << 62n, nanos: 0 },
    });
  });

  test("decodeWatchEvent() has no status of this node when the event shows none", () => {
    expect(decode(event({ nodes: [good, node({ id: "self" })] }))).not.toHaveProperty("selfStatus");
  });
});

test("an event with progress that nobody knows is no full picture", () => {
  const bytes = WatchEvent.encode({
    nodes: [],
    nodeTombstones: [],
    progress: 7 as WatchEvent_Progress,
  }).finish();
  expect(decode(bytes).lastBacklogged).toBe(false);
});

test("decodeWatchEvent() reads 10,000 nodes of 64 prefixes within the time of a few garbage collections", () => {
  const prefixes = Array.from({ length: 64 }, (_, at) => `10.192.${at}.0/24`);
  const big = event({
    nodes: Array.from({ length: 10_000 }, (_, at) =>
      node({ id: `n${at}`, key: "K".repeat(44), address: "192.0.2.1", prefixes }),
    ),
    last: true,
  });
  const {
    result: { nodes },
    processorMs,
  } = timed(() => decode(big));
  expect(nodes).toHaveLength(10_000);
  expect(nodes.at(-1)?.prefixCount).toBe(64);
  // Takes 0.3 s; the limit leaves room for a slower machine and still finds anything quadratic.
  expect(processorMs).toBeLessThan(5_000);
});
