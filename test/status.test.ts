/** The status: as data from what the agent knows, as text for people, over the socket, and without an agent. */
import { afterEach, beforeEach, expect, test } from "bun:test";
import {
  chmodSync,
  existsSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as v from "valibot";
import { systemClock } from "../src/async.ts";
import { pkiInit, pkiIssue } from "../src/commands/pki.ts";
import { describeAbsence, readStatus, status } from "../src/commands/status.ts";
import type { SeenInterface, SeenPeer } from "../src/core/host-state.ts";
import { parsePrivateKey, parsePublicKey, privateKeyFromBytes, type PublicKey } from "../src/core/key.ts";
import type { Mesh, Peer } from "../src/core/mesh.ts";
import type { NodeId } from "../src/core/node.ts";
import { parseAddress, parsePrefix } from "../src/core/prefix.ts";
import { renderWgConfig } from "../src/core/wg-config.ts";
import { CommandError, type ExitStatus } from "../src/errors.ts";
import { servePrivateSocket } from "../src/host/private-socket.ts";
import { silentLogger } from "../src/log.ts";
import {
  type Status,
  type StatusInput,
  buildStatus,
  fromFileRemark,
  noCurator,
  statusSchema,
} from "../src/status.ts";
import { FakeHost } from "./fakes/host.ts";
import { timed } from "./lab/usage.ts";
import { fetchStatus, serveStatus } from "../src/status-socket.ts";
import { renderStatus } from "../src/status-text.ts";

const now = new Date("2026-12-01T12:00:00.000Z");
const nowSeconds = now.getTime() / 1000;

function keyOf(byte: number): PublicKey {
  return privateKeyFromBytes(new Uint8Array(32).fill(byte)).publicKey;
}

function peer(id: string, byte: number, address: string | undefined, ...prefixes: string[]): Peer {
  return {
    nodeId: id as NodeId,
    publicKey: keyOf(byte),
    ...(address === undefined ? {} : { address: parseAddress(address) }),
    prefixes: prefixes.map(parsePrefix),
  };
}

function seenPeer(rest: Partial<SeenPeer>): SeenPeer {
  return {
    allowedIps: [],
    latestHandshakeSeconds: 0,
    receivedBytes: 0,
    sentBytes: 0,
    hasPresharedKey: false,
    ...rest,
  };
}

function seenInterface(peers: readonly (readonly [PublicKey, SeenPeer])[]): SeenInterface {
  return {
    index: 7,
    name: "clusternet",
    implementation: "kernel",
    group: 9,
    mtu: 1420,
    up: true,
    publicKey: keyOf(1),
    listenPort: 7838,
    fwmark: 0,
    peers: new Map(peers),
  };
}

const mesh: Mesh = {
  peers: [
    peer("c", 3, "2001:db8::3", "2001:db8::3/128"),
    peer("b", 2, "192.0.2.2", "10.192.2.0/24", "192.0.2.2/32"),
    peer("d", 4, undefined, "10.192.4.0/24"),
  ],
};

const full: StatusInput = {
  version: "0.1.0",
  agent: { running: true, pid: 42, startedAt: new Date("2026-12-01T11:00:00Z"), notReady: [] },
  node: {
    id: "a" as NodeId,
    publicKey: keyOf(1),
    externalAddress: parseAddress("192.0.2.1"),
    announced: [parsePrefix("192.0.2.1/32"), parsePrefix("10.192.1.0/24")],
    announcedAt: new Date("2026-12-01T11:30:00Z"),
    removed: false,
  },
  curator: {
    state: "connected",
    address: "127.0.0.1:7835",
    since: new Date("2026-12-01T11:00:01Z"),
    fullPicture: true,
    lastEventAt: new Date("2026-12-01T11:59:57Z"),
  },
  source: "curator",
  sourceAt: new Date("2026-12-01T11:59:57Z"),
  interfaceName: "clusternet",
  interface: seenInterface([
    [
      keyOf(2),
      seenPeer({
        endpoint: "192.0.2.2:40000",
        latestHandshakeSeconds: nowSeconds - 179,
        receivedBytes: 1536,
        sentBytes: 5_242_880,
      }),
    ],
    [keyOf(3), seenPeer({ endpoint: "[2001:db8::3]:7838", latestHandshakeSeconds: nowSeconds - 180 })],
  ]),
  mesh,
  listenPort: 7838,
  problems: [
    {
      kind: "prefix-taken",
      nodeId: "c" as NodeId,
      message: "Cannot give 10.192.2.0/24",
      since: new Date("2026-12-01T11:58:00Z"),
    },
    { kind: "curator-unreachable", message: "Cannot reach it", since: new Date("2026-11-28T12:00:00Z") },
  ],
  now,
};

const empty: StatusInput = {
  version: "0.1.0",
  agent: { running: false, notReady: ["no agent runs"] },
  node: {},
  curator: noCurator,
  interfaceName: "clusternet",
  mesh: { peers: [] },
  listenPort: 7838,
  problems: [],
  now,
};

test("buildStatus() tells all that is known, peers by ID, the interface's endpoint before the announced one", () => {
  expect(buildStatus(full)).toEqual({
    schemaVersion: 1,
    version: "0.1.0",
    agent: {
      running: true,
      pid: 42,
      startedAt: "2026-12-01T11:00:00.000Z",
      ready: true,
      reasons: [],
      unhealthy: [],
    },
    node: {
      id: "a",
      publicKey: keyOf(1),
      externalAddress: "192.0.2.1",
      announced: ["192.0.2.1/32", "10.192.1.0/24"],
      announcedAt: "2026-12-01T11:30:00.000Z",
      removed: false,
    },
    curator: {
      state: "connected",
      address: "127.0.0.1:7835",
      since: "2026-12-01T11:00:01.000Z",
      fullPicture: true,
      lastEventAt: "2026-12-01T11:59:57.000Z",
    },
    source: "curator",
    sourceAt: "2026-12-01T11:59:57.000Z",
    interface: {
      name: "clusternet",
      present: true,
      implementation: "kernel",
      listenPort: 7838,
      mtu: 1420,
      up: true,
    },
    peers: [
      {
        id: "b",
        publicKey: keyOf(2),
        endpoint: "192.0.2.2:40000",
        prefixes: ["10.192.2.0/24", "192.0.2.2/32"],
        state: "connected",
        latestHandshakeAt: "2026-12-01T11:57:01.000Z",
        receivedBytes: 1536,
        sentBytes: 5_242_880,
      },
      {
        id: "c",
        publicKey: keyOf(3),
        endpoint: "[2001:db8::3]:7838",
        prefixes: ["2001:db8::3/128"],
        state: "idle",
        latestHandshakeAt: "2026-12-01T11:57:00.000Z",
        receivedBytes: 0,
        sentBytes: 0,
      },
      {
        id: "d",
        publicKey: keyOf(4),
        endpoint: null,
        prefixes: ["10.192.4.0/24"],
        state: "never",
        latestHandshakeAt: null,
        receivedBytes: 0,
        sentBytes: 0,
      },
    ],
    problems: [
      {
        kind: "prefix-taken",
        nodeId: "c",
        message: "Cannot give 10.192.2.0/24",
        since: "2026-12-01T11:58:00.000Z",
      },
      {
        kind: "curator-unreachable",
        nodeId: null,
        message: "Cannot reach it",
        since: "2026-11-28T12:00:00.000Z",
      },
    ],
  });
});

test("buildStatus() says null for never and unknown", () => {
  const want: Status = {
    schemaVersion: 1,
    version: "0.1.0",
    agent: {
      running: false,
      pid: null,
      startedAt: null,
      ready: false,
      reasons: ["no agent runs"],
      unhealthy: [],
    },
    node: {
      id: null,
      publicKey: null,
      externalAddress: null,
      announced: null,
      announcedAt: null,
      removed: null,
    },
    curator: { state: "none", address: null, since: null, fullPicture: false, lastEventAt: null },
    source: null,
    sourceAt: null,
    interface: {
      name: "clusternet",
      present: false,
      implementation: null,
      listenPort: null,
      mtu: null,
      up: false,
    },
    peers: [],
    problems: [],
  };
  expect(buildStatus(empty)).toEqual(want);
});

test("buildStatus() shows the announced endpoint while the interface has none, and peers that no node is known for", () => {
  const stranger = seenPeer({ endpoint: "192.0.2.9:1", allowedIps: ["10.192.9.0/24"], receivedBytes: 5 });
  const { peers } = buildStatus({ ...full, interface: seenInterface([[keyOf(9), stranger]]) });
  expect(peers.map(({ id, endpoint, prefixes }) => [id, endpoint, prefixes.join(" ")])).toEqual([
    ["b", "192.0.2.2:7838", "10.192.2.0/24 192.0.2.2/32"],
    ["c", "[2001:db8::3]:7838", "2001:db8::3/128"],
    ["d", null, "10.192.4.0/24"],
    [null, "192.0.2.9:1", "10.192.9.0/24"],
  ]);
});

test("buildStatus() shows no peer of an interface that is not ours", () => {
  const stranger = seenPeer({ endpoint: "192.0.2.9:1", allowedIps: ["10.192.9.0/24"], receivedBytes: 5 });
  const ofOthers = seenInterface([
    [keyOf(9), stranger],
    [keyOf(2), stranger],
  ]);
  const { peers } = buildStatus({
    ...full,
    interface: ofOthers,
    problems: [{ kind: "interface-foreign", message: "Cannot use it" }],
  });
  expect(peers.map(({ id, endpoint, receivedBytes }) => [id, endpoint, receivedBytes])).toEqual([
    ["b", "192.0.2.2:7838", 0],
    ["c", "[2001:db8::3]:7838", 0],
    ["d", null, 0],
  ]);
});

test.each([
  { name: "everything", input: full },
  { name: "nothing", input: empty },
])("buildStatus() of $name is what the schema says, also after JSON", ({ input }) => {
  const status = buildStatus(input);
  expect(v.parse(v.strictObject(statusSchema.entries), JSON.parse(JSON.stringify(status)))).toEqual(status);
});

test("renderStatus() shows problems first, then this node, then a line for every peer", () => {
  expect(renderStatus(buildStatus(full), { now, color: false })).toBe(
    `
problems: 2
  prefix-taken         c  2 min ago  Cannot give 10.192.2.0/24
  curator-unreachable  -  3 d ago    Cannot reach it

agent:       ready, process 42, since 2026-12-01T11:00:00.000Z (1 h ago), version 0.1.0
node:        a
public key:  ${keyOf(1)}
address:     192.0.2.1
announced:   192.0.2.1/32, 10.192.1.0/24 (30 min ago)
curator:     connected to 127.0.0.1:7835, full picture, since 2026-12-01T11:00:01.000Z (59 min ago), last event 3 s ago
mesh:        from the Curator, as of 2026-12-01T11:59:57.000Z (3 s ago)
interface:   clusternet, kernel, port 7838, MTU 1420, up
peers:       3 (1 connected, 1 idle, 1 never)

NODE  STATE      HANDSHAKE  RECEIVED  SENT     ENDPOINT            PUBLIC KEY                                    PREFIXES
b     connected  2 min ago  1.5 KiB   5.0 MiB  192.0.2.2:40000     ${keyOf(2)}  10.192.2.0/24,192.0.2.2/32
c     idle       3 min ago  0 B       0 B      [2001:db8::3]:7838  ${keyOf(3)}  2001:db8::3/128
d     never      -          0 B       0 B      -                   ${keyOf(4)}  10.192.4.0/24
`.trimStart(),
  );
});

test("a ready agent on the mesh of the last file says so, and how old it is", () => {
  const remark = fromFileRemark(new Date("2026-11-28T12:00:00Z"), now);
  const status = buildStatus({ ...full, agent: { ...full.agent, remarks: [remark] } });
  const said =
    "the mesh is from the file, as of 2026-11-28T12:00:00.000Z (3 d ago): no full picture has come from a Curator since the start";
  expect(status.agent).toMatchObject({ ready: true, reasons: [said] });
  expect(renderStatus(status, { now, color: false })).toContain(
    `
agent:       ready, process 42, since 2026-12-01T11:00:00.000Z (1 h ago), version 0.1.0
             ${said}
node:        a
`,
  );
});

test("renderStatus() says what hangs in a running agent", () => {
  const status = buildStatus({
    ...full,
    agent: { ...full.agent, unhealthy: ["the mesh was last looked at 75 s ago"] },
  });
  expect(renderStatus(status, { now, color: false })).toContain(
    `
agent:       ready, unhealthy, process 42, since 2026-12-01T11:00:00.000Z (1 h ago), version 0.1.0
             the mesh was last looked at 75 s ago
node:        a
`,
  );
});

test.each([
  { name: "all is well", change: {}, check: 0 },
  { name: "there is a problem", change: { problems: full.problems }, check: 3 },
  {
    name: "a loop hangs",
    change: { agent: { ...full.agent, unhealthy: ["the mesh was last looked at 75 s ago"] } },
    check: 3,
  },
  { name: "it is not ready yet", change: { agent: { ...full.agent, notReady: ["no mesh"] } }, check: 0 },
])("status --check of a running agent ends with $check when $name; without --check with 0", async (row) => {
  const server = serveStatus(join(directory, "m.sock"), {
    ...handlers(),
    status: () => buildStatus({ ...full, problems: [], ...row.change }),
  });
  try {
    const exits = [];
    for (const check of [true, false]) {
      const settings = { dataDirectory: directory, interfaceName: "m", json: true, check };
      const context = { log: silentLogger, stdout() {}, terminal: false, clock: systemClock };
      exits.push(await status(settings, context));
    }
    expect(exits).toEqual([row.check as ExitStatus, 0]);
  } finally {
    await server.stop();
  }
});

test("fetchStatus() understands an agent of before `unhealthy`", async () => {
  const { unhealthy: _unhealthy, ...agent } = buildStatus(full).agent;
  const server = servePrivateSocket(join(directory, "m.sock"), () =>
    Promise.resolve(Response.json({ ...buildStatus(full), agent })),
  );
  try {
    expect(await fetchStatus(join(directory, "m.sock"), 2000)).toEqual({
      kind: "status",
      status: buildStatus(full),
    });
  } finally {
    await server.stop();
  }
});

test("renderStatus() without an agent says where the mesh comes from and how old it is", () => {
  const status = buildStatus({
    ...empty,
    source: "file",
    sourceAt: new Date("2026-11-28T12:00:00Z"),
    node: { publicKey: keyOf(1) },
  });
  expect(renderStatus(status, { now, color: false })).toBe(
    `
agent:       not running
             no agent runs
node:        unknown
public key:  ${keyOf(1)}
address:     unknown
announced:   unknown: no agent could be asked
curator:     unknown: no agent could be asked
mesh:        from the file, as of 2026-11-28T12:00:00.000Z (3 d ago)
interface:   clusternet, absent
peers:       none
`.trimStart(),
  );
});

test("the status of a node that was removed shows nothing as announced, and why", () => {
  const status = buildStatus({ ...full, node: { ...full.node, removed: true } });
  expect(status.node).toMatchObject({ announced: [], announcedAt: null, removed: true });
  expect(renderStatus(status, { now, color: false })).toContain(
    "\nannounced:   nothing: this node was removed from the cluster\n",
  );
});

test("renderStatus() colors only for a terminal, and lets nothing through that a terminal obeys", () => {
  const hostile = "x\u001b]0;owned\u0007\n[Peer]\u009b\u202e";
  const status: Status = {
    ...buildStatus(full),
    problems: [{ kind: hostile, nodeId: hostile, message: hostile, since: null }],
    peers: [
      {
        ...buildStatus(full).peers[0],
        id: hostile,
        endpoint: hostile,
        prefixes: [hostile],
      } as Status["peers"][0],
    ],
  };
  // oxlint-disable-next-line no-control-regex -- finding control characters is the purpose
  const controls = /[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u202e]/;
  const plain = renderStatus(status, { now, color: false });
  const colored = renderStatus(status, { now, color: true });
  expect(plain).not.toMatch(controls);
  expect(plain).not.toMatch(/^\[Peer\]/m);
  expect(colored.replaceAll("\u001b[1;31m", "").replaceAll("\u001b[0m", "")).toBe(plain);
  expect(colored).not.toBe(plain);
});

// CASES 44 gives the whole command two seconds.
test("10,000 peers are built, checked and rendered in less than a second", () => {
  const one = peer("b", 2, "192.0.2.2", "10.192.2.0/24", "192.0.2.2/32");
  const peers = Array.from({ length: 10_000 }, (_, index) => ({
    ...one,
    nodeId: `node-${index}` as NodeId,
    publicKey: parsePublicKey(
      new Uint8Array(32)
        .fill(1)
        .with(0, index % 256)
        .with(1, index >> 8)
        .toBase64(),
    ),
  }));
  const seen = seenInterface(
    peers.map(({ publicKey }) => [publicKey, seenPeer({ latestHandshakeSeconds: nowSeconds - 5 })]),
  );
  const { result: text, processorMs } = timed(() => {
    const status = buildStatus({ ...full, mesh: { peers }, interface: seen });
    const told = v.parse(statusSchema, JSON.parse(JSON.stringify(status)));
    return renderStatus(told, { now, color: false });
  });
  expect(text.split("\n").filter((line) => line.startsWith("node-")).length).toBe(10_000);
  expect(processorMs).toBeLessThan(1_000);
});

let directory = "";
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "clusternet-status-"));
});
afterEach(() => {
  rmSync(directory, { recursive: true, force: true });
});

function handlers(
  rest: {
    readonly notReady?: readonly string[];
    readonly remarks?: readonly string[];
    readonly unhealthy?: readonly string[];
  } = {},
) {
  return {
    status: () => buildStatus(full),
    notReady: () => rest.notReady ?? [],
    remarks: () => rest.remarks ?? [],
    unhealthy: () => rest.unhealthy ?? [],
  };
}

async function get(path: string, request: string, method = "GET"): Promise<string> {
  const response = await fetch(`http://clusternet${request}`, { unix: path, method });
  return `${response.status} ${await response.text()}`;
}

test("serveStatus() answers the client with the status, whatever proxy the environment names", async () => {
  const path = join(directory, "m.sock");
  const server = serveStatus(path, handlers());
  process.env["http_proxy"] = "http://127.0.0.1:1";
  try {
    expect(await fetchStatus(path, 2000)).toEqual({ kind: "status", status: buildStatus(full) });
  } finally {
    delete process.env["http_proxy"];
    await server.stop();
  }
  expect(existsSync(path)).toBe(false);
  expect(await fetchStatus(path, 2000)).toEqual({ kind: "absent" });
});

test.each([
  { request: "/healthz", parts: {}, want: "200 ok\n" },
  {
    request: "/healthz",
    parts: { unhealthy: ["pull hangs", "push hangs"] },
    want: "503 pull hangs\npush hangs\n",
  },
  { request: "/readyz", parts: {}, want: "200 ok\n" },
  { request: "/readyz", parts: { notReady: ["no mesh"] }, want: "503 no mesh\n" },
  { request: "/readyz", parts: { remarks: ["from the file"] }, want: "200 ok\nfrom the file\n" },
  { request: "/", parts: {}, want: "404 expected /status, /healthz or /readyz\n" },
  { request: "/status", method: "POST", parts: {}, want: "405 expected GET\n" },
])("serveStatus() answers $request with $want", async ({ request, method, parts, want }) => {
  const path = join(directory, "m.sock");
  const server = serveStatus(path, handlers(parts));
  try {
    expect(await get(path, request, method)).toBe(want);
  } finally {
    await server.stop();
  }
});

test("serveStatus() makes the socket with mode 0600 at any umask, and leaves the umask as it was", async () => {
  const umask = process.umask(0);
  try {
    const server = serveStatus(join(directory, "m.sock"), handlers());
    expect(statSync(join(directory, "m.sock")).mode & 0o777).toBe(0o600);
    await server.stop();
    expect(process.umask()).toBe(0);
  } finally {
    process.umask(umask);
  }
});

test("serveStatus() replaces the socket file of a dead agent, and nothing else that has its name", async () => {
  const path = join(directory, "m.sock");
  const child = Bun.spawn(
    [
      process.execPath,
      "-e",
      `Bun.serve({ unix: ${JSON.stringify(path)}, fetch: () => new Response("") }); console.log("up")`,
    ],
    { stdout: "pipe", stderr: "inherit" },
  );
  await child.stdout.getReader().read();
  child.kill("SIGKILL");
  await child.exited;
  expect(lstatSync(path).isSocket()).toBe(true);
  expect(await fetchStatus(path, 2000)).toEqual({ kind: "absent" });
  const server = serveStatus(path, handlers());
  expect((await fetchStatus(path, 2000)).kind).toBe("status");
  await server.stop();
  writeFileSync(path, "mine");
  expect(() => serveStatus(path, handlers())).toThrow(`Cannot listen on socket "${path}"`);
  expect(lstatSync(path).isFile()).toBe(true);
});

test("StatusServer.ensure() binds again after the data directory was removed, and after a changed mode", async () => {
  const data = join(directory, "data");
  const path = join(data, "m.sock");
  mkdirSync(data);
  const server = serveStatus(path, handlers());
  const inode = statSync(path).ino;
  await server.ensure();
  expect(statSync(path).ino).toBe(inode);
  rmSync(data, { recursive: true });
  // oxlint-disable-next-line typescript/await-thenable -- bun's types do not say that rejects waits
  await expect(server.ensure()).rejects.toThrow("Cannot listen on socket");
  mkdirSync(data);
  await server.ensure();
  expect((await fetchStatus(path, 2000)).kind).toBe("status");
  chmodSync(path, 0o777);
  await server.ensure();
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect((await fetchStatus(path, 2000)).kind).toBe("status");
  await server.stop();
});

test.each([
  { name: "never answers", answer: "new Promise(() => {})", want: "it did not answer within 0.3 s" },
  {
    name: "never ends its answer",
    answer: "new Response(new ReadableStream({ start(c) { c.enqueue('{') } }))",
    want: "it did not answer within 0.3 s",
  },
  { name: "fails", answer: "new Response('', { status: 500 })", want: "it answered HTTP 500" },
  {
    name: "speaks another language",
    answer: "Response.json({ schemaVersion: 2 })",
    want: "its answer is of another version of this program",
  },
  {
    name: "answers no JSON",
    answer: "new Response('<html>')",
    want: "its answer is not JSON",
  },
])("fetchStatus() is not held up by an agent that $name", async ({ answer, want }) => {
  const path = join(directory, "m.sock");
  const child = Bun.spawn(
    [
      process.execPath,
      "-e",
      `Bun.serve({ unix: ${JSON.stringify(path)}, fetch: () => ${answer} }); console.log("up")`,
    ],
    { stdout: "pipe", stderr: "inherit" },
  );
  try {
    await child.stdout.getReader().read();
    expect(await fetchStatus(path, 300)).toEqual({ kind: "silent", reason: want, forbidden: false });
  } finally {
    child.kill("SIGKILL");
    await child.exited;
  }
});

const seenByFake = {
  endpoint: "192.0.2.9:1",
  allowedIps: ["10.192.9.0/24"],
  keepalive: 0,
  preshared: false,
  handshake: 0,
  received: 5,
};

const noAgent = { running: false, why: ["no agent runs"] } as const;
const clock = {
  nowMs: () => 0,
  wallTime: () => now,
  timeSetMs: () => 0,
  sleep: async () => {},
  random: () => 0,
};
const noPrograms = async (argv: readonly string[]): Promise<string> => {
  throw new CommandError(`Cannot run "${argv.join(" ")}": not found in PATH`, { argv });
};

test.each([
  { name: "nobody", others: [], want: [] },
  {
    name: "one with another data directory",
    others: [{ interfaceName: "clusternet", holder: "process 12", dataDirectory: "/srv/my mesh" }],
    want: [
      `process 12 holds interface "clusternet" in this network namespace; ask it with: clusternet status --data-dir '/srv/my mesh'`,
    ],
  },
  {
    name: "one with another interface, and one whose process is not seen",
    others: [
      { interfaceName: "cn2", holder: "process 13", dataDirectory: "/var/lib/clusternet" },
      { interfaceName: "cn3", holder: "a process that cannot be seen from here" },
    ],
    want: [
      `process 13 holds interface "cn2" in this network namespace; ask it with: clusternet status --interface cn2`,
      `a process that cannot be seen from here holds interface "cn3" in this network namespace; ask it with its own --data-dir`,
    ],
  },
  {
    name: "one in the same place that has no socket yet",
    others: [{ interfaceName: "m", holder: "process 14", dataDirectory: "/data" }],
    want: [`process 14 holds interface "m" in this network namespace, and does not answer yet`],
  },
])("describeAbsence() says where it looked, and of $name how to ask", ({ others, want }) => {
  expect(describeAbsence({ dataDirectory: "/data", interfaceName: "m" }, others)).toEqual([
    `no agent runs on data directory "/data" with interface "m"`,
    ...want,
  ]);
});

test("readStatus() without an agent tells what the files hold and reports what cannot be read", async () => {
  const privateKey = parsePrivateKey(new Uint8Array(32).fill(1).toBase64());
  writeFileSync(join(directory, "private.key"), `${privateKey.reveal()}\n`, { mode: 0o600 });
  const text = renderWgConfig({ listenPort: 7000, mesh: { peers: mesh.peers.toReversed() } }, privateKey);
  writeFileSync(join(directory, "m.conf"), text, { mode: 0o600 });
  const status = await readStatus({ dataDirectory: directory, interfaceName: "m" }, noAgent, {
    log: silentLogger,
    clock,
    run: noPrograms,
  });
  expect(status.agent).toEqual({
    running: false,
    pid: null,
    startedAt: null,
    ready: false,
    reasons: ["no agent runs"],
    unhealthy: [],
  });
  expect([status.node.publicKey, status.source, status.interface.present]).toEqual([
    privateKey.publicKey,
    "file",
    null,
  ]);
  expect(renderStatus(status, { now, color: false })).toContain(
    "interface:   m, unknown: it could not be looked at\n",
  );
  expect(status.sourceAt).toBe(lstatSync(join(directory, "m.conf")).mtime.toISOString());
  expect(status.peers.map(({ id, endpoint, state }) => [id, endpoint, state])).toEqual([
    ["b", "192.0.2.2:7000", "never"],
    ["c", "[2001:db8::3]:7000", "never"],
    ["d", null, "never"],
  ]);
  expect(status.problems.map(({ kind, since }) => [kind, since])).toEqual([
    ["apply-failed", null],
    ["address-missing", null],
  ]);
  expect(JSON.stringify(status)).not.toContain(privateKey.reveal());
});

test("readStatus() knows the node by its certificate, and says of credentials that cannot be used why", async () => {
  const context = { log: silentLogger, stdout() {} };
  const [caDir, out] = [join(directory, "ca"), join(directory, "credentials")];
  await pkiInit({ caDir }, context);
  await pkiIssue({ caDir, out }, "web-1" as NodeId, context);
  const read = () =>
    readStatus({ dataDirectory: directory, interfaceName: "m" }, noAgent, {
      log: silentLogger,
      clock,
      run: noPrograms,
    });
  expect((await read()).node).toEqual({
    id: "web-1",
    publicKey: null,
    externalAddress: null,
    announced: null,
    announcedAt: null,
    removed: null,
  });
  writeFileSync(join(out, "cert.pem"), "");
  const { node, problems } = await read();
  expect([node.id, problems.map(({ message }) => message)]).toEqual([
    null,
    expect.arrayContaining([expect.stringContaining(`Cannot use node certificate "${out}/cert.pem": `)]),
  ]);
});

// CASES 27: a key with a typo, and a mesh file that somebody wrote by hand.
test("readStatus() shows no piece of a key file or mesh file that cannot be used", async () => {
  const secret = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk";
  writeFileSync(join(directory, "private.key"), `${secret}!\n`, { mode: 0o600 });
  writeFileSync(join(directory, "m.conf"), `[Interface]\nPrivatKey = ${secret}=\n`, { mode: 0o600 });
  const status = await readStatus({ dataDirectory: directory, interfaceName: "m" }, noAgent, {
    log: silentLogger,
    clock,
    run: noPrograms,
  });
  expect(status.problems.map(({ kind }) => kind)).toEqual(["source-failed", "apply-failed", "source-failed"]);
  const shown = JSON.stringify(status) + renderStatus(status, { now, color: false });
  expect(shown).not.toContain(secret.slice(0, 12));
});

test.each([
  { name: "of ours by its key", own: true, group: 0, protocol: 3, want: ["", "the node's key", "a peer"] },
  {
    name: "of ours by group and route",
    own: false,
    group: 9,
    protocol: 129,
    want: ["", "its key", "a peer"],
  },
  {
    name: "of somebody else",
    own: false,
    group: 9,
    protocol: 3,
    want: ["interface-foreign", "no key"],
  },
])("readStatus() of an interface $name", async ({ own, group, protocol, want }) => {
  const fake = new FakeHost();
  const node = privateKeyFromBytes(new Uint8Array(32).fill(1));
  if (own) writeFileSync(join(directory, "private.key"), `${node.reveal()}\n`, { mode: 0o600 });
  const peers = new Map([[keyOf(9), seenByFake]]);
  const publicKey = own ? node.publicKey : keyOf(8);
  fake.addLink("m", "wireguard", { publicKey, group, peers });
  const network = "10.192.0.0/11";
  fake.routes.push({ type: "unicast", network, device: "m", protocol, metric: 0, src: "" });
  const status = await readStatus({ dataDirectory: directory, interfaceName: "m" }, noAgent, {
    log: silentLogger,
    clock,
    run: fake.run,
  });
  const found = status.node.publicKey;
  const names = new Map([
    [node.publicKey, "the node's key"],
    [keyOf(8), "its key"],
  ]);
  expect([
    status.problems.map(({ kind }) => kind).join(),
    found === null ? "no key" : (names.get(found as PublicKey) ?? found),
    ...status.peers.map(() => "a peer"),
  ]).toEqual([...want]);
  expect(fake.changes).toEqual([]);
});

test("readStatus() changes no file, also one that others can read, and reports that", async () => {
  const privateKey = parsePrivateKey(new Uint8Array(32).fill(1).toBase64());
  const state = { version: 1, bootId: "", loopbackAddresses: [], clusterNets: [], learnedCurators: [] };
  const files = {
    "private.key": `${privateKey.reveal()}\n`,
    "m.conf": renderWgConfig({ listenPort: 7838, mesh }, privateKey),
    "m.state": JSON.stringify(state),
    "credentials/cert-key.pem": "",
  };
  mkdirSync(join(directory, "credentials"));
  for (const [name, content] of Object.entries(files)) {
    writeFileSync(join(directory, name), content);
    chmodSync(join(directory, name), 0o644);
  }
  const shown = (): string[] =>
    Object.keys(files).map((name) => {
      const { mode, ino, ctimeMs } = statSync(join(directory, name));
      return `${name} ${mode} ${ino} ${ctimeMs}`;
    });
  const before = shown();
  const status = await readStatus({ dataDirectory: directory, interfaceName: "m" }, noAgent, {
    log: silentLogger,
    clock,
    run: noPrograms,
  });
  expect(status.problems.filter(({ kind }) => kind === "key-mode").length).toBe(3);
  expect(shown()).toEqual(before);
});

test("readStatus() of a node that never ran has nothing to show and no problem but the missing programs", async () => {
  const status = await readStatus({ dataDirectory: join(directory, "none"), interfaceName: "m" }, noAgent, {
    log: silentLogger,
    clock,
    run: noPrograms,
  });
  expect([status.source, status.peers, status.problems.map(({ kind }) => kind)]).toEqual([
    null,
    [],
    ["apply-failed"],
  ]);
  expect(existsSync(join(directory, "none"))).toBe(false);
});
