/**
 * pull against a host that records what it is asked for and fails when told to, with time turned by hand.
 */
import { describe, expect, test } from "bun:test";
import { Value, begin } from "../src/async.ts";
import type { SeenHost, WantedHost } from "../src/core/host-state.ts";
import { privateKeyFromBytes } from "../src/core/key.ts";
import { asNodeId, type Node, type NodeId } from "../src/core/node.ts";
import { parsePrefix } from "../src/core/prefix.ts";
import type { Problem } from "../src/core/problem.ts";
import type { DecodedEvent } from "../src/curator/connection.ts";
import type { StreamEvent } from "../src/curator/follower.ts";
import { ClusternetError } from "../src/errors.ts";
import type { ApplyResult, Host } from "../src/host/host.ts";
import { silentLogger } from "../src/log.ts";
import { alwaysAnswered, readOwn, type NetworkStatus, type Own } from "../src/own.ts";
import { Prefixes } from "../src/prefixes.ts";
import { ProblemLog } from "../src/problem-log.ts";
import { Pull, type PullSettings, type PullState } from "../src/pull.ts";
import { Tracker } from "../src/tracker.ts";
import { FakeClock } from "./fakes/clock.ts";
import { FakeFollower } from "./fakes/follower.ts";
import { waitFor } from "./lab/wait.ts";

const until = (look: () => boolean): Promise<unknown> => waitFor(look, String(look));
const id = (text: string): NodeId => asNodeId(text) ?? expect.unreachable();
const privateKey = privateKeyFromBytes(new Uint8Array(32).fill(1));
const clusterNets = [parsePrefix("10.192.0.0/11")];

function node(name: string, ...prefixes: readonly string[]): Node {
  return {
    id: id(name),
    state: "up",
    publicKey: privateKeyFromBytes(new Uint8Array(32).fill(name.charCodeAt(0))).publicKey,
    externalAddress: `192.0.2.${name.charCodeAt(0)}`,
    prefixes,
    prefixCount: prefixes.length,
    consensusMember: false,
  };
}

const self: Node = { ...node("a", "10.192.1.0/24"), publicKey: privateKey.publicKey };

const seenHost: SeenHost = { routes: [], loopback: [], addresses: new Set(["192.0.2.97"]) };

/** Says what it is told to, and what it was asked for. */
class FakeHost implements Host {
  readonly applied: WantedHost[] = [];
  readonly log: string[];
  invalidations = 0;
  /** Problems of the next applies; with none left they succeed. */
  failures: (Problem | undefined)[] = [];
  seen: SeenHost | undefined = seenHost;
  /** Until this resolves, an apply goes on. */
  gate: Promise<void> = Promise.resolve();

  constructor(log: string[]) {
    this.log = log;
  }

  invalidate(): void {
    this.invalidations++;
  }

  read(): Promise<SeenHost> {
    return Promise.resolve(this.seen ?? seenHost);
  }

  async apply(wanted: WantedHost, _signal?: AbortSignal, written?: Promise<unknown>): Promise<ApplyResult> {
    const isWritten = await written;
    this.applied.push(wanted);
    this.log.push(`apply ${shown(wanted)}${isWritten === undefined ? " unwritten" : ""}`);
    await this.gate;
    const failure = this.failures.shift();
    const problems = failure === undefined ? [] : [failure];
    const seen = this.seen === undefined ? {} : { seen: this.seen };
    return { complete: failure === undefined, done: [], problems, ...seen };
  }

  plan(wanted: WantedHost): Promise<ApplyResult> {
    return this.apply(wanted);
  }

  async *hints(): AsyncIterable<never> {}
}

function shown(wanted: WantedHost): string {
  const peers = wanted.peers.map((peer) => peer.nodeId).join(" ");
  return `[${peers}]${wanted.exact ? "" : " open"}`;
}

/** `heard`: what came of the Curator, which is followed already, before the first mesh. */
function start(
  settings: Partial<PullSettings> = {},
  fromFile?: readonly Node[],
  complete = true,
  heard?: readonly StreamEvent[],
) {
  const clock = new FakeClock();
  const log: string[] = [];
  const stop = new AbortController();
  const curator = new FakeFollower(heard);
  /** At each resync: how often the host was to be read anew so far. */
  const resyncs: number[] = [];
  const host = new FakeHost(log);
  const file = { text: "", fails: false, flush: Promise.resolve() };
  const own = new Value<Own>(
    readOwn(
      { self: self.id, publicKey: privateKey.publicKey, clusterNets },
      {
        podNetwork: new Value<Prefixes | undefined>(new Prefixes(["10.192.1.0/24"])),
        podNetworkState: new Value(alwaysAnswered),
        lastPodPrefixes: [],
        network: new Value<NetworkStatus | undefined>({ externalAddress: "192.0.2.97" }),
        mtu: new Value({ mtu: 1420, problems: [] }),
      },
    ),
  );
  const problems = new ProblemLog(silentLogger, clock);
  const lines: string[] = [];
  const pull = new Pull(
    { interfaceName: "clusternet", privateKey, listenPort: 7838, clusterNets, resyncMs: 30_000, ...settings },
    {
      tracker: new Tracker({ self: self.id, fromFile: fromFile ?? [], complete }),
      curator,
      ...(heard === undefined ? {} : { events: begin(curator.follow(stop.signal)) }),
      host,
      file: {
        async write(pieces, onFlush) {
          const text = Buffer.concat(pieces).toString();
          if (file.fails) throw new ClusternetError("Cannot write file: no space left on device");
          const isNew = text !== file.text;
          if (isNew) log.push("write");
          file.text = text;
          await file.flush;
          onFlush();
          return { stamp: "as written", isNew };
        },
      },
      own,
      problems,
      log: {
        ...silentLogger,
        info: (message, fields) => void lines.push(`${message} ${JSON.stringify(fields)}`),
        warn: (message) => void lines.push(`WARN ${message}`),
      },
      clock,
      onResync: () => void resyncs.push(host.invalidations),
    },
  );
  const running = pull.run(stop.signal);
  return {
    clock,
    log,
    lines,
    host,
    file,
    pull,
    reopened: curator.reopened,
    resyncs,
    kinds: () => problems.current().map(({ kind }) => kind),
    messages: () => problems.current().map(({ message }) => message),
    open: (stream = 1) => curator.send({ kind: "opened", stream, address: "c:1" }),
    event: (nodes: readonly Node[], last = false, stream = 1) =>
      curator.send({ kind: "event", stream, event: eventOf(nodes, last) }),
    async end() {
      stop.abort();
      await running;
    },
  };
}

function eventOf(nodes: readonly Node[], lastBacklogged: boolean): DecodedEvent {
  return { nodes, tombstones: [], lastBacklogged, problems: [] };
}

describe("Pull", () => {
  test("applies the last file at once, then each change, always the file first", async () => {
    const run = start({ fileTime: new Date(0) }, [node("b")]);
    await until(() => run.log.length === 2);
    run.open();
    run.event([self, node("b"), node("c")], true);
    await run.clock.advance(200);
    expect(run.log.filter((line, index) => line !== run.log[index - 1])).toEqual([
      "write",
      "apply [b]",
      "write",
      "apply [b c]",
    ]);
    expect(run.pull.state.get()).toMatchObject({ source: "curator", applied: true, heardOut: true });
    await run.end();
  });

  test("makes one mesh of the last file and of what came while this host was read", async () => {
    const event = eventOf([self, node("b"), node("c")], true);
    const run = start({ fileTime: new Date(0) }, [node("b")], true, [
      { kind: "opened", stream: 1, address: "c:1" },
      { kind: "event", stream: 1, event },
    ]);
    await until(() => run.pull.state.get().holds);
    expect(run.log).toEqual(["write", "apply [b c]"]);
    expect(run.pull.state.get()).toMatchObject({ source: "curator", applied: true, heardOut: true });
    expect(run.lines.map((line) => line.split(" {")[0])).toEqual([
      "Starting from the last file",
      "In step with the Curator",
      "Peer added",
    ]);
    await run.end();
  });

  test("logs once a stream that the interface holds the whole picture, and not of a picture that lacks this node", async () => {
    const run = start();
    const inStep = (): readonly string[] => run.lines.filter((line) => line.startsWith("In step"));
    run.open();
    run.event([self, node("b")]);
    await run.clock.advance(200);
    expect(inStep()).toEqual([]);
    run.event([node("c")], true);
    await run.clock.advance(400);
    run.event([node("d")]);
    await run.clock.advance(400);
    expect(inStep()).toEqual(['In step with the Curator {"peers":2}']);
    run.open(2);
    run.event([node("b"), node("c"), node("d")], true, 2);
    await run.clock.advance(400);
    expect(inStep()).toHaveLength(1);
    run.open(3);
    run.event([self, node("b"), node("c"), node("d")], true, 3);
    await run.clock.advance(400);
    expect(inStep()).toEqual([
      'In step with the Curator {"peers":2}',
      'In step with the Curator {"peers":3}',
    ]);
    await run.end();
  });

  test("says of a picture that comes while another mesh is applied nothing before it holds itself", async () => {
    const run = start();
    const gate = Promise.withResolvers<void>();
    run.host.gate = gate.promise;
    await until(() => run.host.applied.length === 1);
    run.open();
    run.event([self, node("b")], true);
    await run.clock.advance(50);
    // The next turn, which comes at once, is refused.
    run.host.failures = [undefined, { kind: "apply-failed", message: "no" }];
    const states: PullState[] = [];
    const stop = new AbortController();
    const watching = (async () => {
      for await (const state of run.pull.state.watch(stop.signal)) states.push(state);
    })();
    gate.resolve();
    await until(() => run.pull.state.get().heardOut);
    stop.abort();
    await watching;
    expect(states.find(({ holds }) => holds)).toMatchObject({
      heardOut: false,
      applied: false,
      mesh: { peers: [] },
    });
    expect(run.pull.state.get()).toMatchObject({ heardOut: true, holds: false });
    await run.clock.advance(1000);
    expect(run.pull.state.get()).toMatchObject({ heardOut: true, holds: true, applied: true });
    expect(run.pull.state.get().mesh.peers.map((peer) => peer.nodeId)).toEqual([id("b")]);
    await run.end();
  });

  test("says that the mesh comes from the file until a picture is full", async () => {
    const fileTime = new Date("2025-12-31T00:00:00Z");
    const run = start({ fileTime }, [node("b")]);
    await until(() => run.pull.state.get().applied);
    expect(run.pull.state.get()).toMatchObject({ source: "file", sourceAt: fileTime, heardOut: false });
    await run.end();
  });

  test("changes the interface also when the file cannot be written, reports it and writes it later", async () => {
    const run = start();
    run.file.fails = true;
    run.open();
    run.event([self, node("b")], true);
    await run.clock.advance(500);
    expect(run.log.at(-1)).toBe("apply [b] unwritten");
    expect(run.kinds()).toEqual(["file-unwritable"]);
    run.file.fails = false;
    await run.clock.advance(20_000);
    expect(run.file.text).toContain("# node = b");
    expect(run.kinds()).toEqual([]);
    await run.end();
  });

  test("writes the file once more at its end when it could not be written before, and no other one", async () => {
    const run = start();
    run.file.fails = true;
    run.open();
    run.event([self, node("b")], true);
    await run.clock.advance(500);
    expect(run.kinds()).toEqual(["file-unwritable"]);
    run.file.fails = false;
    const { length } = run.log;
    await run.end();
    expect([run.log.slice(length), run.kinds()]).toEqual([["write"], []]);
    expect(run.file.text).toContain("# node = b");
  });

  test("says so when the file cannot be written at its end either", async () => {
    const run = start();
    run.file.fails = true;
    run.open();
    run.event([self, node("b")], true);
    await run.clock.advance(500);
    const { length } = run.lines;
    await run.end();
    expect(run.lines.slice(length)).toEqual([
      "WARN Cannot write file: no space left on device. A start without a Curator goes on from an older mesh",
    ]);
    expect(run.kinds()).toEqual(["file-unwritable"]);
  });

  test("leaves a file that cannot be used alone until a picture is believed", async () => {
    const run = start({ keepFile: true }, [], false);
    run.open();
    run.event([node("b")]);
    await run.clock.advance(500);
    expect(run.log.at(-1)).toBe("apply [b] open unwritten");
    expect(run.file.text).toBe("");
    run.event([self], true);
    await run.clock.advance(500);
    expect(run.log.slice(-2)).toEqual(["write", "apply [b]"]);
    await run.end();
  });

  test("tries again what the host refused, until it holds, and is not ready while the port is taken", async () => {
    const run = start();
    run.host.failures = Array.from(
      { length: 4 },
      () => ({ kind: "port-in-use", message: "UDP port 7838" }) as const,
    );
    run.open();
    run.event([self, node("b")], true);
    await run.clock.advance(300);
    expect(run.pull.state.get().applied).toBe(false);
    await run.clock.advance(20_000);
    expect(run.pull.state.get().applied).toBe(true);
    expect(run.kinds()).toEqual([]);
    await run.end();
  });

  test("keeps what it knows of the host while that cannot be looked at, readiness too", async () => {
    const run = start();
    const failWith = (problem: Problem): void =>
      void (run.host.failures = Array.from({ length: 9 }, () => problem));
    const unread: Problem = { kind: "apply-failed", message: "wg show: still running after 10 s" };
    const now = () => ({ messages: run.messages(), applied: run.pull.state.get().applied });
    const taken = "UDP port 7838";
    failWith({ kind: "port-in-use", message: taken });
    run.open();
    run.event([self, node("b")], true);
    await run.clock.advance(300);
    expect(now()).toEqual({ messages: [taken], applied: false });
    run.host.seen = undefined;
    failWith(unread);
    await run.clock.advance(1_000);
    expect(now()).toEqual({ messages: [unread.message, taken], applied: false });
    // Of what keeps it from looking only the last word counts.
    failWith({ ...unread, message: "ip address show: still running after 10 s" });
    await run.clock.advance(5_000);
    expect(now()).toEqual({ messages: ["ip address show: still running after 10 s", taken], applied: false });
    run.host.failures = [];
    run.host.seen = seenHost;
    await run.clock.advance(20_000);
    expect(now()).toEqual({ messages: [], applied: true });
    await run.end();
  });

  // How many nodes come, how long it takes until the next ones do, and how many peers have been applied by then.
  const bursts = [
    { name: "few changes without a wait", steps: [{ come: 8, ms: 0, peers: 8 }] },
    {
      name: "a burst when nothing came for 4 ms",
      steps: [
        { come: 9, ms: 3.9, peers: 0 },
        { come: 0, ms: 0.2, peers: 9 },
      ],
    },
    {
      name: "a burst that goes on when it has come to its end",
      steps: [
        { come: 9, ms: 3.9, peers: 0 },
        { come: 1, ms: 3.9, peers: 0 },
        { come: 20, ms: 3.9, peers: 0 },
        { come: 0, ms: 1, peers: 30 },
      ],
    },
  ];
  test.each(bursts)("applies $name, and once", async ({ steps }) => {
    const run = start();
    run.open();
    run.event([self], true);
    await run.clock.advance(1_000);
    const before = run.host.applied.length;
    let sent = 0;
    for (const { come, ms, peers } of steps) {
      const letters = Array.from({ length: come }, () => String.fromCharCode("A".charCodeAt(0) + sent++));
      if (come > 0) run.event(letters.map((letter) => node(letter)));
      await run.clock.advance(ms);
      if (peers > 0) await until(() => run.host.applied.length > before);
      expect(run.host.applied.at(-1)?.peers).toHaveLength(peers);
    }
    await run.clock.advance(1_000);
    expect(run.host.applied).toHaveLength(before + 1);
    await run.end();
  });

  test("finds out what is to be done on the host while the disk is busy with the file, not before", async () => {
    const run = start();
    run.open();
    run.event([self, node("b")], true);
    await run.clock.advance(500);
    const flush = Promise.withResolvers<void>();
    run.file.flush = flush.promise;
    run.event([node("c")]);
    await run.clock.advance(500);
    expect(run.log).toEqual(["write", "apply []", "write", "apply [b]", "write"]);
    flush.resolve();
    await until(() => run.log.at(-1) === "apply [b c]");
    await run.end();
  });

  test("looks at the underlay for a resync when the host is read, not while the file is being written", async () => {
    const run = start();
    run.open();
    run.event([self, node("b")], true);
    await run.clock.advance(29_500);
    const flush = Promise.withResolvers<void>();
    run.file.flush = flush.promise;
    const before = run.resyncs.length;
    await run.clock.advance(1_000);
    expect(run.resyncs).toHaveLength(before);
    flush.resolve();
    await until(() => run.resyncs.length === before + 1);
    await run.end();
  });

  test.each([{ asks: false }, { asks: true }])(
    "gives a disputed prefix to the same node when somebody asks for the mesh in a burst: $asks",
    async ({ asks }) => {
      const run = start();
      run.open();
      run.event([self], true);
      await until(() => run.pull.state.get().holds);
      await run.clock.advance(1_000);
      const others = "d e f g h i j k l".split(" ").map((name) => node(name));
      run.event([node("c", "10.192.4.0/24"), ...others]);
      await run.clock.advance(2);
      if (asks) expect(run.pull.mesh.peers.find(({ nodeId }) => nodeId === "c")?.prefixes).toHaveLength(1);
      run.event([node("b", "10.192.4.0/24")]);
      await run.clock.advance(1_000);
      const peers = run.host.applied.at(-1)?.peers ?? [];
      const holders = peers.filter(({ prefixes }) => prefixes.length > 0).map(({ nodeId }) => String(nodeId));
      expect({ peers: peers.length, holders }).toEqual({ peers: 11, holders: ["b"] });
      await run.end();
    },
  );

  test("merges a flood of changes into at most ten applies a second", async () => {
    const run = start();
    run.open();
    run.event([self], true);
    await run.clock.advance(1000);
    const before = run.host.applied.length;
    for (let change = 0; change < 100; change++) {
      run.event([node("b", `10.192.${change + 2}.0/24`)]);
      await run.clock.advance(20);
    }
    const applies = run.host.applied.length - before;
    expect(applies).toBeGreaterThan(10);
    expect(applies).toBeLessThanOrEqual(21);
    await run.clock.advance(200);
    expect(run.host.applied.at(-1)?.peers[0]?.prefixes.map((each) => each.text)).toEqual(["10.192.101.0/24"]);
    await run.end();
  });

  test("reads the host anew at every resync and at every hint", async () => {
    const run = start({ resyncMs: 5000 });
    await run.clock.advance(100);
    const before = run.host.invalidations;
    await run.clock.advance(20_000);
    expect(run.host.invalidations - before).toBe(4);
    // Told to who looks at the host beside, before it is read.
    expect(run.resyncs).toEqual([0, 1, 2, 3, 4].map((count) => before + count));
    const applies = run.host.applied.length;
    run.pull.hint();
    await run.clock.advance(150);
    expect([run.host.invalidations - before, run.host.applied.length - applies]).toEqual([5, 1]);
    expect(run.resyncs).toHaveLength(5);
    await run.end();
  });

  test("lets hints that a failure makes itself not take the place of the backoff", async () => {
    const run = start();
    await run.clock.advance(500);
    run.host.failures = Array.from({ length: 500 }, () => ({ kind: "apply-failed", message: "no" }) as const);
    run.clock.nextRandom = 0.999;
    run.pull.hint();
    await run.clock.advance(10_000);
    const before = run.host.applied.length;
    for (let hint = 0; hint < 80; hint++) {
      run.pull.hint();
      await run.clock.advance(250);
    }
    const turns = run.host.applied.length - before;
    expect(turns).toBeGreaterThan(8);
    expect(turns).toBeLessThanOrEqual(20_000 / 1_500 + 2);
    await run.end();
  });

  test("asks for the opinion of another stream, five minutes later, when a picture lacks too many peers", async () => {
    const run = start();
    run.clock.nextRandom = 0;
    run.open();
    run.event([self, ...["b", "c", "d", "e"].map((name) => node(name))], true);
    await run.clock.advance(500);
    run.open(2);
    run.event([self, node("b")], true, 2);
    await run.clock.advance(500);
    expect(run.reopened).toEqual([300_000]);
    expect(run.log.at(-1)).toBe("apply [b c d e]");
    expect(run.kinds()).toEqual(["picture-shrunk"]);
    await run.end();
  });

  test("opens the stream anew within a minute when the Curator sends its nodes again, and not twice in ten minutes", async () => {
    const run = start();
    const four = [self, ...["b", "c", "d"].map((name) => node(name))];
    run.open();
    run.event(four, true);
    await run.clock.advance(61_000);
    // Nothing is wrong with nodes that changed, nor with one that did not.
    for (const each of four) run.event([{ ...each, state: "standby" }]);
    run.event(four.slice(0, 1).map((each) => ({ ...each, state: "standby" })));
    await run.clock.advance(11_000);
    expect(run.reopened).toEqual([]);
    run.clock.nextRandom = 0.5;
    const again = (): void => {
      for (const each of four) run.event([{ ...each, state: "standby" }]);
    };
    again();
    await run.clock.advance(1_000);
    expect(run.reopened).toEqual([30_000]);
    expect(run.lines.filter((line) => line.includes("sends its nodes again"))).toHaveLength(1);
    await run.clock.advance(9 * 60_000);
    again();
    await run.clock.advance(1_000);
    expect(run.reopened).toEqual([30_000]);
    await run.clock.advance(60_000);
    again();
    await run.clock.advance(1_000);
    expect(run.reopened).toEqual([30_000, 30_000]);
    await run.end();
  });

  test("judges other nodes' addresses again when the host's own change", async () => {
    const run = start();
    run.open();
    run.event([self, node("b")], true);
    await run.clock.advance(500);
    expect(run.host.applied.at(-1)?.peers[0]?.address?.text).toBe("192.0.2.98");
    run.host.seen = { ...seenHost, addresses: new Set(["192.0.2.97", "192.0.2.98"]) };
    run.pull.hint();
    await run.clock.advance(500);
    expect(run.host.applied.at(-1)?.peers[0]?.address).toBeUndefined();
    expect(run.kinds()).toEqual(["address-own"]);
    await run.end();
  });
});
