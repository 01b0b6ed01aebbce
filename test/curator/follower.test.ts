/**
 * The follower against Curators in memory and a clock turned by hand; at the end against a real server.
 */
import { describe, expect, test } from "bun:test";
import { array, assert, asyncProperty, constantFrom, nat, oneof, record } from "fast-check";
import { Value, aborted, systemClock } from "../../src/async.ts";
import type { LeaderAnswer } from "../../src/core/curators.ts";
import type { Node, NodeId } from "../../src/core/node.ts";
import type { CuratorConnection, DecodedEvent } from "../../src/curator/connection.ts";
import {
  createFollower,
  type CuratorFollower,
  type FollowerSettings,
  type StreamEvent,
} from "../../src/curator/follower.ts";
import { connectGrpc } from "../../src/curator/grpc-connection.ts";
import { CuratorError } from "../../src/errors.ts";
import { silentLogger } from "../../src/log.ts";
import { parsePrefix } from "../../src/core/prefix.ts";
import { FakeClock } from "../fakes/clock.ts";
import { FakeCurator, node as nodeBytes } from "../fakes/curator.ts";
import { waitFor } from "../lab/wait.ts";

const self = "self" as NodeId;

function node(id: string, publicKey = ""): Node {
  return {
    id: id as NodeId,
    state: "up",
    publicKey,
    externalAddress: "",
    prefixes: [],
    prefixCount: 0,
    consensusMember: false,
  };
}

function nodesEvent(nodes: readonly Node[], last = false, tombstones: readonly string[] = []): DecodedEvent {
  return { nodes, tombstones: tombstones as NodeId[], lastBacklogged: last, problems: [] };
}

/** One Watch call at a Curator in memory. */
interface FakeStream {
  readonly address: string;
  readonly open: boolean;
  /** The Curator has taken the call. */
  headers(): void;
  send(...events: readonly DecodedEvent[]): void;
  /** Ends with this error, or well. */
  end(error?: Error): void;
}

/** What a Curator says of the leader, as it changes. */
type Leading = Value<LeaderAnswer | undefined>;

function leading(answer?: LeaderAnswer): Leading {
  return new Value<LeaderAnswer | undefined>(answer);
}

/** Curators in memory: what each does when it is watched. */
class FakeCurators {
  readonly streams: FakeStream[] = [];
  /** Addresses of all connections so far, and of those that are not closed. */
  readonly connected: string[] = [];
  readonly open = new Set<CuratorConnection>();
  /** Of each connection: the node that it was to be, if any. */
  readonly expected: (string | undefined)[] = [];
  /** By address: what each says of the leader; `undefined`: that there is none. Without an entry it answers UNIMPLEMENTED. */
  readonly leaders = new Map<string, Leading | "silent">();
  /** How often anybody was asked who leads. */
  asked = 0;
  /** Called for each new stream; does nothing unless set: a Curator that is silent. */
  onWatch: (stream: FakeStream) => void = () => {};

  connect = (address: string, { expectedId }: { readonly expectedId?: NodeId } = {}): CuratorConnection => {
    this.connected.push(address);
    this.expected.push(expectedId);
    const connection: CuratorConnection = {
      address,
      watchNodes: (signal, onHeaders) => this.#watch(address, signal, onHeaders ?? (() => {})),
      watchLeader: (signal) => this.#watchLeader(address, signal),
      announce: () => Promise.resolve(),
      reportStatus: () => Promise.resolve(),
      close: () => this.open.delete(connection),
    };
    this.open.add(connection);
    return connection;
  };

  /** As the real one: names the leader once, and ends when that changes. */
  async *#watchLeader(address: string, signal: AbortSignal): AsyncGenerator<LeaderAnswer, void> {
    this.asked++;
    const leader = this.leaders.get(address);
    if (leader === undefined) throw new CuratorError("Cannot ask: UNIMPLEMENTED", { code: 12 });
    if (leader === "silent") return await aborted(signal);
    const answer = leader.get();
    if (answer === undefined) throw unavailable(address, "no leader");
    yield answer;
    let changes = -1;
    for await (const _ of leader.watch(signal))
      if (++changes > 0) throw unavailable(address, "leader changed");
  }

  async *#watch(
    address: string,
    signal: AbortSignal,
    onHeaders: () => void,
  ): AsyncGenerator<DecodedEvent, void> {
    const queue: (DecodedEvent | Error | "end")[] = [];
    let wake: (() => void) | undefined;
    let open = true;
    const offer = (what: DecodedEvent | Error | "end"): void => {
      queue.push(what);
      wake?.();
    };
    const stream: FakeStream = {
      address,
      get open() {
        return open;
      },
      headers: onHeaders,
      send: (...events) => events.forEach(offer),
      end: (error) => offer(error ?? "end"),
    };
    signal.addEventListener("abort", () => wake?.(), { once: true });
    this.streams.push(stream);
    this.onWatch(stream);
    try {
      while (!signal.aborted) {
        const next = queue.shift();
        if (next === "end") return;
        if (next instanceof Error) throw next;
        if (next !== undefined) yield next;
        else {
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        }
      }
    } finally {
      open = false;
    }
  }
}

function unavailable(address: string, details = "gone"): CuratorError {
  return new CuratorError(`Cannot watch nodes at Curator "${address}": UNAVAILABLE: ${details}`, {
    code: 14,
  });
}

const tooLarge = new CuratorError(
  "Cannot watch: RESOURCE_EXHAUSTED: Received message larger than max (9 vs 8)",
  {
    code: 8,
  },
);

/** A follower that runs, and what its consumer has got so far, each event in a few words. */
class Run implements AsyncDisposable {
  readonly clock = new FakeClock();
  readonly curators = new FakeCurators();
  readonly seen: string[] = [];
  readonly follower: CuratorFollower;
  readonly #stop = new AbortController();
  readonly #done: Promise<void>;

  constructor(
    onWatch: (stream: FakeStream) => void = () => {},
    addresses: readonly string[] = ["a:1"],
    prepare: (clock: FakeClock, curators: FakeCurators) => void = () => {},
    settings: Partial<FollowerSettings> = {},
  ) {
    this.curators.onWatch = onWatch;
    prepare(this.clock, this.curators);
    this.follower = createFollower(
      { addresses, self, connect: this.curators.connect, ...settings },
      { clock: this.clock, log: silentLogger },
    );
    this.#done = this.#consume();
  }

  /** The newest stream. */
  get stream(): FakeStream {
    const last = this.curators.streams.at(-1);
    if (last === undefined) throw new Error("no stream yet");
    return last;
  }

  get problems(): readonly string[] {
    return this.follower.problems.get().map(({ kind, message }) => `${kind}: ${message}`);
  }

  /** Lets everything happen that needs no time. */
  settle(): Promise<void> {
    return this.clock.advance(0);
  }

  async #consume(): Promise<void> {
    for await (const event of this.follower.follow(this.#stop.signal)) this.seen.push(inWords(event));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await this.#done;
    expect(this.curators.open.size).toBe(0);
    expect(this.curators.streams.filter(({ open }) => open)).toEqual([]);
    expect(this.clock.sleeping).toBe(0);
    expect(this.follower.connection.get()).toBeUndefined();
    expect(this.follower.state.get()).toEqual({ state: "none", fullPicture: false });
  }
}

function inWords(event: StreamEvent): string {
  switch (event.kind) {
    case "opened":
      return `${event.stream} opened at ${event.address}${event.replaces === undefined ? "" : ` beside ${event.replaces}`}`;
    case "closed":
      return `${event.stream} closed`;
    case "event": {
      const { nodes, tombstones, lastBacklogged } = event.event;
      const words = [
        ...nodes.map(({ id }) => id as string),
        ...tombstones.map((id) => `-${id}`),
        ...(lastBacklogged ? ["last"] : []),
      ];
      return `${event.stream} ${words.join(" ")}`;
    }
  }
}

/** A Curator that has one node. */
function full(stream: FakeStream): void {
  stream.send(nodesEvent([node("a")], true));
}

/** What the real server's picture looks like to the consumer. */
function pictureAt(address: string, stream: string, beside = ""): string[] {
  return [`${stream} opened at ${address}${beside}`, `${stream} self b last`];
}

/** The waits between attempts; the far longer one for the next renewal of a stream aside. */
function attemptWaits(clock: FakeClock): number[] {
  return clock.sleeps.filter((ms) => ms <= 60_000);
}

describe("a stream", () => {
  test("is handed on whole, with connection and state beside it", async () => {
    await using run = new Run();
    await run.settle();
    expect(run.follower.state.get()).toEqual({
      state: "connecting",
      address: "a:1",
      since: new Date("2026-01-01T00:00:00Z"),
      fullPicture: false,
    });
    expect(run.follower.connection.get()).toBeUndefined();
    await run.clock.advance(70_000);
    run.stream.send(nodesEvent([node("a")]));
    await run.settle();
    expect(run.follower.connection.get()?.address).toBe("a:1");
    expect(run.follower.state.get()).toEqual({
      state: "connected",
      address: "a:1",
      since: new Date("2026-01-01T00:01:10Z"),
      fullPicture: false,
      lastEventAt: new Date("2026-01-01T00:01:10Z"),
    });
    await run.clock.advance(1_000);
    run.stream.send(nodesEvent([node("b")], true), nodesEvent([], false, ["a"]));
    await run.settle();
    expect(run.follower.state.get()).toMatchObject({
      fullPicture: true,
      lastEventAt: new Date("2026-01-01T00:01:11Z"),
    });
    expect(run.seen).toEqual(["1 opened at a:1", "1 a", "1 b last", "1 -a"]);
    expect(run.curators.streams).toHaveLength(1);
  });

  test("counts as alive when the Curator has taken the call, before any event", async () => {
    await using run = new Run((stream) => stream.headers());
    await run.settle();
    expect(run.follower.connection.get()?.address).toBe("a:1");
    expect(run.follower.state.get()).toMatchObject({ state: "connected", fullPicture: false });
    expect(run.seen).toEqual(["1 opened at a:1"]);
  });

  test("is read no faster than its consumer takes it", async () => {
    const curators = new FakeCurators();
    curators.onWatch = (stream) =>
      stream.send(...Array.from({ length: 100 }, (_, at) => nodesEvent([node(`n${at}`)])));
    let pulled = 0;
    const connect = (address: string): CuratorConnection => {
      const inner = curators.connect(address);
      return {
        ...inner,
        async *watchNodes(signal) {
          for await (const event of inner.watchNodes(signal)) {
            pulled++;
            yield event;
          }
        },
      };
    };
    const clock = new FakeClock();
    const follower = createFollower({ addresses: ["a:1"], self, connect }, { clock, log: silentLogger });
    const stop = new AbortController();
    const seen: string[] = [];
    for await (const event of follower.follow(stop.signal)) {
      seen.push(inWords(event));
      await clock.advance(0);
      // The one that is being worked on, and the one that waits to be taken.
      expect(pulled).toBeLessThanOrEqual(seen.length + 1);
      if (seen.length === 20) break;
    }
    expect(seen.at(-1)).toBe("1 n18");
  });
});

describe("a stream that ends", () => {
  test("is opened again after at most half a second, as another stream", async () => {
    await using run = new Run((stream) => stream.send(nodesEvent([node("a")], true)));
    await run.settle();
    run.stream.end(unavailable("a:1"));
    await run.settle();
    expect(run.follower.state.get()).toMatchObject({ state: "connecting", fullPicture: false });
    expect(run.follower.connection.get()).toBeUndefined();
    await run.clock.advance(500);
    expect(run.seen).toEqual(["1 opened at a:1", "1 a last", "1 closed", "2 opened at a:1", "2 a last"]);
    expect(run.problems).toEqual([]);
  });

  test("is tried again after 0.5 s doubling to 15 s, with full jitter, until it brings an event", async () => {
    await using run = new Run(
      (stream) => stream.end(unavailable("a:1")),
      ["a:1"],
      (clock) => {
        clock.nextRandom = 0.5;
      },
    );
    await run.clock.advance(60_000);
    const waits = attemptWaits(run.clock).slice(0, 9);
    expect(waits).toEqual([250, 500, 1000, 2000, 4000, 7500, 7500, 7500, 7500]);
    run.curators.onWatch = (stream) => {
      stream.send(nodesEvent([], true));
      stream.end();
    };
    await run.clock.advance(7_500);
    expect(attemptWaits(run.clock).at(-1)).toBe(250);
  });

  test.each([
    { name: "after one event", lifeMs: 0, most: 600 },
    { name: "half a minute after one event", lifeMs: 30_000, most: 100 },
  ])("$name, again and again, is opened again ever more rarely", async ({ lifeMs, most }) => {
    await using run = new Run(
      () => {},
      ["a:1"],
      (clock, curators) => {
        curators.onWatch = (stream) => {
          stream.send(nodesEvent([node("a")]));
          void clock.sleep(lifeMs, new AbortController().signal).then(() => stream.end());
        };
      },
    );
    await run.clock.advance(60 * 60_000);
    expect(run.curators.streams.length).toBeWithin(most / 2, most);
    run.curators.onWatch = (stream) => stream.send(nodesEvent([node("a")]));
    await run.clock.advance(45_000);
    await run.clock.advance(60_000);
    // One that lived for a minute was well, full picture or not.
    const before = run.curators.streams.length;
    run.stream.end();
    await run.clock.advance(500);
    expect(run.curators.streams.length).toBe(before + 1);
  });

  test("is given up when it has brought nothing for ten minutes, which is a problem, and the next address is tried", async () => {
    await using run = new Run(() => {}, ["a:1", "b:2"]);
    await run.clock.advance(10 * 60_000 - 1);
    expect([run.curators.connected, run.problems]).toEqual([["a:1"], []]);
    await run.clock.advance(1);
    expect(run.curators.connected).toEqual(["a:1", "b:2"]);
    expect(run.curators.streams.map(({ open }) => open)).toEqual([false, true]);
    await run.clock.advance(10 * 60_000);
    expect(run.problems).toEqual([
      'curator-unreachable: Curator "a:1" brought no event within 10 min; Curator "b:2" brought no event within 10 min',
    ]);
  });

  test("is given up when it was taken and has brought nothing for ten minutes, but not when it goes on slowly", async () => {
    await using run = new Run((stream) => stream.headers(), ["a:1", "b:2"]);
    await run.clock.advance(10 * 60_000);
    expect(run.seen).toEqual(["1 opened at a:1", "1 closed", "2 opened at b:2"]);
    run.stream.send(nodesEvent([node("a")]));
    await run.clock.advance(60 * 60_000);
    expect(run.seen.slice(3)).toEqual(["2 a"]);
    expect(run.problems).toEqual([]);
  });

  test("without having brought anything keeps the backoff growing, also when it ended well", async () => {
    await using run = new Run((stream) => {
      stream.headers();
      stream.end();
    });
    await run.clock.advance(60_000);
    expect(run.curators.connected.length).toBeLessThan(14);
  });

  test("tells what to do when no Curator can be reached, once for all that fail alike", async () => {
    const hints = ["Is it up?", "Check the name", "Is it up?"];
    const addresses = ["a:1", "b:2", "c:3"];
    await using run = new Run((stream) => {
      const { address } = stream;
      const hint = hints[addresses.indexOf(address)] ?? "";
      stream.end(new CuratorError(`Cannot reach Curator "${address}"`, { code: 14, hint }));
    }, addresses);
    await run.settle();
    expect(run.problems).toEqual([
      'curator-unreachable: Cannot reach Curator "a:1"; Cannot reach Curator "b:2"; Cannot reach Curator "c:3"; hint: Is it up?; hint: Check the name',
    ]);
  });

  test("tells that no Curator can be reached, why, and when that is over", async () => {
    await using run = new Run(
      (stream) => stream.end(unavailable(stream.address, `no ${stream.address}`)),
      ["a:1", "b:2"],
    );
    await run.settle();
    expect(run.problems).toEqual([
      'curator-unreachable: Cannot watch nodes at Curator "a:1": UNAVAILABLE: no a:1; Cannot watch nodes at Curator "b:2": UNAVAILABLE: no b:2',
    ]);
    run.curators.onWatch = (stream) => stream.headers();
    await run.clock.advance(1_000);
    expect(run.problems).toEqual([]);
    expect(run.follower.state.get()).toMatchObject({ state: "connected", address: "a:1" });
  });

  test("a Curator that takes the call and ends it again and again is one problem that lasts", async () => {
    await using run = new Run((stream) => {
      stream.headers();
      stream.end();
    });
    let changes = -1;
    const stop = new AbortController();
    const watching = (async () => {
      for await (const _ of run.follower.problems.watch(stop.signal)) changes++;
    })();
    await run.clock.advance(120_000);
    stop.abort();
    await watching;
    expect(run.problems).toEqual(['curator-unreachable: Curator "a:1" ended the stream']);
    expect(changes).toBe(1);
    expect(run.seen.slice(0, 4)).toEqual(["1 opened at a:1", "1 closed", "2 opened at a:1", "2 closed"]);
  });

  test("by an event that is too large is a problem of its own, with a backoff that grows, until a picture is full", async () => {
    await using run = new Run((stream) => {
      stream.send(nodesEvent([node("a")]));
      stream.end(tooLarge);
    });
    await run.clock.advance(60_000);
    expect(run.problems).toEqual([`event-too-large: ${tooLarge.message}`]);
    expect(attemptWaits(run.clock).slice(0, 6)).toEqual([250, 500, 1000, 2000, 4000, 7500]);
    run.curators.onWatch = (stream) => stream.send(nodesEvent([node("a")]), nodesEvent([], true));
    await run.clock.advance(15_000);
    expect(run.problems).toEqual([]);
  });
});

describe("several addresses", () => {
  test("are tried in turn without a wait between them, the last good one first", async () => {
    const down = new Set(["a:1"]);
    await using run = new Run(
      (stream) => {
        if (down.has(stream.address)) stream.end(unavailable(stream.address));
        else stream.send(nodesEvent([], true));
      },
      ["a:1", "b:2", "c:3"],
    );
    await run.settle();
    expect(run.curators.connected).toEqual(["a:1", "b:2"]);
    down.delete("a:1");
    down.add("b:2");
    run.stream.end(unavailable("b:2"));
    await run.clock.advance(500);
    expect(run.curators.connected).toEqual(["a:1", "b:2", "b:2", "c:3"]);
    expect(run.seen).toEqual(["2 opened at b:2", "2 last", "2 closed", "4 opened at c:3", "4 last"]);
    expect(run.problems).toEqual([]);
    expect(run.curators.open.size).toBe(1);
  });

  test.each([
    {
      name: "that was cut off",
      before: [nodesEvent([], true)],
      details: "Connection dropped",
      last: ["c:3", "a:1", "b:2", hostOf("x")],
    },
    {
      name: "that ended before its picture was full",
      before: [nodesEvent([])],
      details: "gone",
      last: ["a:1", "b:2", "c:3", hostOf("x")],
    },
  ])("begin with the next one after a stream $name", async ({ before, details, last }) => {
    const silent = new Set<string>();
    await using run = new Run(
      (stream) => {
        if (!silent.has(stream.address)) stream.send(...before);
      },
      ["a:1", "b:2", "c:3"],
    );
    run.follower.learn([{ address: hostOf("x") }]);
    await run.settle();
    silent.add("a:1").add("b:2");
    run.stream.end(unavailable("a:1", details));
    await run.clock.advance(500);
    expect(run.curators.connected).toEqual(["a:1", "b:2"]);
    run.stream.end(unavailable("b:2"));
    await run.settle();
    expect(run.curators.connected).toEqual(["a:1", "b:2", "c:3"]);
    run.stream.end(unavailable("c:3"));
    run.curators.onWatch = (stream) => stream.end(unavailable(stream.address));
    silent.clear();
    await run.clock.advance(1_000);
    expect(run.curators.connected.slice(3, 7)).toEqual([...last]);
  });

  test("a Curator that does not lead is left for the next", async () => {
    await using run = new Run(
      (stream) => {
        if (stream.address === "a:1")
          stream.end(new CuratorError("Cannot watch: UNIMPLEMENTED: no", { code: 12 }));
        else stream.send(nodesEvent([], true));
      },
      ["a:1", "b:2"],
    );
    await run.settle();
    expect(run.seen).toEqual(["2 opened at b:2", "2 last"]);
  });
});

/** Three Curators, of which one leads; the others answer UNIMPLEMENTED and name it. */
class Cluster {
  readonly curators: FakeCurators;
  leads = "";
  /** Those that do not answer. */
  readonly down = new Set<string>();

  constructor(curators: FakeCurators, leads: string, members = ["a", "b", "c"]) {
    this.curators = curators;
    for (const id of members) curators.leaders.set(hostOf(id), leading());
    curators.onWatch = (stream) => this.watch(stream);
    this.lead(leads);
  }

  watch(stream: FakeStream): void {
    if (this.down.has(stream.address)) stream.end(unavailable(stream.address));
    else if (stream.address === hostOf(this.leads)) full(stream);
    else stream.end(new CuratorError(`Cannot watch at ${stream.address}: UNIMPLEMENTED`, { code: 12 }));
  }

  /** Another one leads from now on, and all know it; "": nobody. */
  lead(id: string): void {
    this.leads = id;
    for (const [address, leader] of this.curators.leaders) {
      if (leader !== "silent") leader.set(id === "" ? undefined : leaderAt(id, address));
    }
  }
}

function hostOf(id: string): string {
  return `192.0.2.${id.charCodeAt(0)}:7835`;
}

/** What the Curator at `address` says while `id` leads. */
function leaderAt(id: string, address: string): LeaderAnswer {
  const thisNodeId = String.fromCharCode(Number(/(\d+):/.exec(address)?.[1]));
  return { leaderNodeId: id, leaderHost: `192.0.2.${id.charCodeAt(0)}`, leaderPort: 7835, thisNodeId };
}

/** A follower of a cluster; `change` is made before anything is dialled. */
function runInCluster(
  addresses: readonly string[],
  leads: string,
  {
    change = () => {},
    settings = {},
  }: {
    readonly change?: (cluster: Cluster, clock: FakeClock) => void;
    readonly settings?: Partial<FollowerSettings>;
  } = {},
): Run & { readonly cluster: Cluster } {
  const made: Cluster[] = [];
  const prepare = (clock: FakeClock, curators: FakeCurators): void => {
    const cluster = new Cluster(curators, leads);
    change(cluster, clock);
    made.push(cluster);
  };
  const run = new Run(() => {}, addresses, prepare, settings);
  return Object.assign(run, { cluster: made[0] ?? expect.unreachable() });
}

describe("the leader", () => {
  test("is found through any Curator, at once, and must prove to be the node that was named", async () => {
    await using run = runInCluster([hostOf("b")], "c");
    await run.settle();
    expect([run.curators.connected, run.curators.expected]).toEqual([
      [hostOf("b"), hostOf("c")],
      [undefined, "c"],
    ]);
    expect(run.follower.state.get()).toMatchObject({ state: "connected", address: hostOf("c") });
    expect(run.problems).toEqual([]);
  });

  test("is followed when it moves, though the old one goes on streaming, and no earlier than a random wait", async () => {
    await using run = runInCluster([hostOf("a"), hostOf("b")], "a");
    await run.settle();
    // The old one's stream stays open, as the real one's does for two seconds; the question is asked again after 250 ms.
    run.cluster.lead("c");
    await run.clock.advance(250);
    expect(run.curators.streams[0]?.open).toBe(false);
    expect(run.curators.connected).toEqual([hostOf("a")]);
    await run.clock.advance(250);
    expect(run.curators.connected.slice(1)).toEqual([hostOf("c")]);
    expect(run.seen.slice(-3)).toEqual(["1 closed", `2 opened at ${hostOf("c")}`, "2 a last"]);
    expect(run.problems).toEqual([]);
  });

  test("that is gone is looked for at all others, and found when one of them leads", async () => {
    await using run = runInCluster([hostOf("a")], "a");
    run.follower.learn([{ address: hostOf("b"), nodeId: "b" as NodeId }, { address: hostOf("c") }]);
    await run.settle();
    run.cluster.down.add(hostOf("a"));
    run.cluster.lead("");
    run.curators.leaders.delete(hostOf("a"));
    run.stream.end(unavailable(hostOf("a")));
    await run.clock.advance(2_000);
    expect(new Set(run.curators.connected)).toEqual(new Set([hostOf("a"), hostOf("b"), hostOf("c")]));
    expect(run.problems).toHaveLength(1);
    run.cluster.lead("c");
    await run.clock.advance(15_000);
    expect(run.follower.state.get()).toMatchObject({ state: "connected", address: hostOf("c") });
    expect(run.problems).toEqual([]);
  });

  test("is waited for a while when a Curator that does not lead is slow to say who does", async () => {
    await using run = runInCluster([hostOf("a"), hostOf("b")], "c", {
      change: ({ curators, down }) => {
        curators.leaders.set(hostOf("a"), "silent");
        down.add(hostOf("b"));
      },
    });
    await run.clock.advance(4_999);
    expect(run.curators.connected).toEqual([hostOf("a")]);
    await run.clock.advance(1);
    expect(run.curators.connected.slice(0, 2)).toEqual([hostOf("a"), hostOf("b")]);
  });

  test.each([
    { name: "has told no address", leader: { leaderHost: "" } },
    { name: "is inside ClusterNet", leader: { leaderHost: "10.192.0.1" } },
    { name: "is a name", leader: { leaderHost: "leader.example" } },
    { name: "has no port", leader: { leaderPort: 0 } },
    { name: "is not one of --curator-id", leader: { leaderNodeId: "x" } },
  ])("is not dialled when it $name, and the report says so", async ({ leader }) => {
    const answer = { ...leaderAt("c", hostOf("a")), ...leader };
    await using run = runInCluster([hostOf("a")], "c", {
      change: ({ curators }) => curators.leaders.set(hostOf("a"), leading(answer)),
      settings: { clusterNets: [parsePrefix("10.192.0.0/11")], curatorIds: ["a", "c"] },
    });
    await run.clock.advance(60_000);
    expect(new Set(run.curators.connected)).toEqual(new Set([hostOf("a")]));
    expect(run.problems.join()).toContain(`it names leader "${answer.leaderNodeId}" at `);
  });

  test("elsewhere is not dialled when only this machine's Curators may be", async () => {
    await using run = runInCluster(["127.0.0.1:1"], "c", {
      change: ({ curators }) => curators.leaders.set("127.0.0.1:1", leading(leaderAt("c", hostOf("a")))),
      settings: { loopbackOnly: true },
    });
    run.follower.learn([{ address: hostOf("b") }, { address: "[::1]:7835" }]);
    await run.clock.advance(60_000);
    expect(new Set(run.curators.connected)).toEqual(new Set(["127.0.0.1:1", "[::1]:7835"]));
  });

  test("that proves to be another node is followed all the same when its address was given by hand", async () => {
    await using run = runInCluster([hostOf("a"), hostOf("b")], "b", {
      change: ({ curators }) => {
        const answer = { ...leaderAt("b", hostOf("a")), leaderNodeId: "x" };
        curators.leaders.set(hostOf("a"), leading(answer));
        const watch = curators.onWatch;
        curators.onWatch = (stream) => {
          const untrusted = new CuratorError("Cannot trust: not x", { code: 14, untrusted: true });
          if (curators.expected.at(-1) === "x") stream.end(untrusted);
          else watch(stream);
        };
      },
    });
    await run.settle();
    expect([run.curators.connected, run.curators.expected]).toEqual([
      [hostOf("a"), hostOf("b"), hostOf("b")],
      [undefined, "x", undefined],
    ]);
    expect(run.follower.state.get()).toMatchObject({ state: "connected", address: hostOf("b") });
    expect(run.problems).toEqual([]);
  });

  test("that cannot be reached is no reason to leave a Curator that serves, again and again", async () => {
    await using run = runInCluster([hostOf("a")], "a", {
      change: ({ curators, down }) => {
        curators.leaders.set(hostOf("a"), leading(leaderAt("c", hostOf("a"))));
        down.add(hostOf("c"));
      },
    });
    await run.clock.advance(10 * 60_000);
    expect(run.curators.connected.filter((address) => address === hostOf("c"))).toHaveLength(1);
    expect(run.follower.state.get()).toMatchObject({ state: "connected", address: hostOf("a") });
    expect(run.problems).toEqual([]);
  });

  test("is not looked for while a Curator serves that does not say which node it is", async () => {
    await using run = runInCluster([hostOf("a")], "a", {
      change: ({ curators }) =>
        curators.leaders.set(hostOf("a"), leading({ ...leaderAt("c", hostOf("a")), thisNodeId: "" })),
    });
    await run.clock.advance(60_000);
    expect(run.curators.connected).toEqual([hostOf("a")]);
  });

  test("that two Curators take each other for gives no quick exchange between them", async () => {
    await using run = runInCluster([hostOf("a"), hostOf("b")], "a", {
      change: ({ curators }) => {
        curators.onWatch = full;
        curators.leaders.set(hostOf("a"), leading(leaderAt("b", hostOf("a"))));
        curators.leaders.set(hostOf("b"), leading(leaderAt("a", hostOf("b"))));
      },
    });
    await run.clock.advance(10 * 60_000);
    expect(run.curators.streams.length).toBeLessThan(100);
  });

  test("is asked for rarely when a Curator answers that question and ends the answer at once", async () => {
    await using run = runInCluster([hostOf("a")], "a", {
      change: ({ curators }) => curators.leaders.set(hostOf("a"), leading()),
    });
    await run.clock.advance(60 * 60_000);
    expect(run.curators.asked).toBeGreaterThan(50);
    expect(run.curators.asked).toBeLessThan(150);
  });

  test("that is lost is looked for by hundreds of agents, each at a time of its own", async () => {
    const agents = 300;
    const timesMs: number[] = [];
    for (let agent = 0; agent < agents; agent++) {
      const run = runInCluster([hostOf("a"), hostOf("b")], "a", {
        change: (_, clock) => {
          clock.nextRandom = (agent + 0.5) / agents;
        },
      });
      await run.settle();
      run.cluster.down.add(hostOf("a"));
      run.curators.onWatch = (stream) => {
        if (stream.address === hostOf("b")) timesMs.push(run.clock.nowMs());
        run.cluster.watch(stream);
      };
      run.cluster.lead("");
      run.stream.end(unavailable(hostOf("a")));
      await run.clock.advance(499);
      await run[Symbol.asyncDispose]();
    }
    // Of the first tries each tenth of a second has its fifth, and some that were early try a second time.
    for (let from = 0; from < 500; from += 100) {
      const tries = timesMs.filter((ms) => ms >= from && ms < from + 100).length;
      expect([from, tries >= agents / 5 - 1, tries < agents / 2]).toEqual([from, true, true]);
    }
  });
});

describe("Curators that the cluster named", () => {
  test("are tried after those given by hand, from another one at each agent", async () => {
    const named = ["x", "y", "z"].map((id) => ({ address: hostOf(id), nodeId: id as NodeId }));
    const firsts: string[] = [];
    for (const random of [0.01, 0.4, 0.9]) {
      await using run = new Run(
        (stream) => stream.end(unavailable(stream.address)),
        ["a:1", "b:2"],
        (clock) => {
          clock.nextRandom = random;
        },
      );
      run.follower.learn(named);
      // The first round has begun already, with nobody named.
      await run.clock.advance(500);
      expect(run.curators.connected.slice(0, 4)).toEqual(["a:1", "b:2", "a:1", "b:2"]);
      expect(run.curators.connected.slice(4, 7).toSorted()).toEqual(named.map(({ address }) => address));
      expect(new Set(run.curators.expected.slice(4, 7))).toEqual(new Set(["x", "y", "z"]));
      firsts.push(run.curators.connected[4] ?? "");
    }
    expect(firsts).toEqual([hostOf("x"), hostOf("y"), hostOf("z")]);
  });

  test("never take the place of those given by hand", async () => {
    await using run = new Run(
      (stream) => {
        if (stream.address === hostOf("x")) full(stream);
        else stream.end(unavailable(stream.address));
      },
      ["a:1"],
    );
    run.follower.learn([{ address: hostOf("x") }]);
    await run.settle();
    run.stream.end(unavailable(hostOf("x")));
    run.curators.onWatch = (stream) => stream.end(unavailable(stream.address));
    await run.clock.advance(60_000);
    expect(run.curators.connected.filter((address) => address === "a:1").length).toBeGreaterThan(5);
  });
});

test("a node that was removed is told so, tries rarely, and comes back when it is let in again", async () => {
  const gone = new CuratorError("Cannot watch: NOT_FOUND: removed", { code: 5 });
  await using run = new Run(
    (stream) => stream.end(gone),
    ["a:1"],
    (clock) => {
      clock.nextRandom = 0.999;
    },
  );
  await run.clock.advance(3_600_000);
  expect(run.problems).toEqual([
    'announce-refused: This node was removed from the cluster: the Curator knows no node "self" (NOT_FOUND). The mesh ' +
      "stays as it was; `clusternet node allow self` on the Curator's machine, with --data-dir where the Curator has one, lets this node in again",
  ]);
  expect(run.curators.connected.length).toBeGreaterThan(55);
  expect(run.curators.connected.length).toBeLessThan(70);
  run.curators.onWatch = full;
  await run.clock.advance(60_000);
  expect(run.problems).toEqual([]);
  run.stream.end(gone);
  await run.settle();
  expect(run.problems).toHaveLength(1);
  expect(run.clock.sleeps.at(-1)).toBeCloseTo(9_990);
});

test("a Curator whose certificate is refused is a problem of its own until it, or what is in its place, is accepted", async () => {
  const untrusted = new CuratorError("Cannot trust Curator: foreign CA", { code: 14, untrusted: true });
  await using run = new Run(
    (stream) => {
      if (stream.address === "a:1") stream.end(untrusted);
      else full(stream);
    },
    ["a:1", "b:2"],
  );
  await run.settle();
  expect(run.problems).toEqual(["curator-untrusted: Cannot trust Curator: foreign CA"]);
  expect(run.follower.state.get()).toMatchObject({ state: "connected", address: "b:2" });
  run.curators.onWatch = (stream) => {
    if (stream.address === "a:1") full(stream);
    else stream.end(unavailable("b:2"));
  };
  run.stream.end(unavailable("b:2"));
  await run.clock.advance(1_000);
  expect(run.problems).toEqual([]);
});

describe("a stream that is opened anew", () => {
  test("runs beside the old one, which goes on until the new picture is full", async () => {
    await using run = new Run(full);
    await run.settle();
    const old = run.stream;
    run.curators.onWatch = () => {};
    run.follower.reopen(1_000);
    await run.clock.advance(999);
    expect(run.curators.streams).toHaveLength(1);
    await run.clock.advance(1);
    expect(run.curators.streams).toHaveLength(2);
    run.stream.send(nodesEvent([node("x")]));
    await run.settle();
    old.send(nodesEvent([node("b")]));
    await run.settle();
    expect(old.open).toBe(true);
    run.stream.send(nodesEvent([node("a"), node("b")], true));
    await run.settle();
    run.stream.send(nodesEvent([node("c")]));
    await run.settle();
    expect(run.seen).toEqual([
      "1 opened at a:1",
      "1 a last",
      "2 opened at a:1 beside 1",
      "2 x",
      "1 b",
      "2 a b last",
      "1 closed",
      "2 c",
    ]);
    expect(old.open).toBe(false);
    expect(run.curators.connected).toEqual(["a:1"]);
    expect(run.follower.state.get()).toMatchObject({ state: "connected", fullPicture: true });
  });

  test("is given up with its connection when that is said to be dead, and another one made at once", async () => {
    await using run = new Run(full);
    await run.settle();
    const old = run.stream;
    run.follower.reconnect("its address is gone");
    expect(run.follower.connection.get()).toBeUndefined();
    await run.clock.advance(500);
    await run.settle();
    expect(old.open).toBe(false);
    expect(run.curators.connected).toEqual(["a:1", "a:1"]);
    expect(run.curators.open.size).toBe(1);
    expect(run.seen).toEqual(["1 opened at a:1", "1 a last", "1 closed", "2 opened at a:1", "2 a last"]);
    expect(run.follower.problems.get()).toEqual([]);
    expect(run.follower.connection.get()).toBe([...run.curators.open][0]);
  });

  test("is tried for again without a wait when there is another way, as often as that is said", async () => {
    await using run = new Run((stream) => stream.end(unavailable("a:1")));
    await run.settle();
    const before = run.curators.connected.length;
    for (let again = 0; again < 20; again++) {
      run.follower.reconnect("another way");
      await run.settle();
    }
    expect(run.curators.connected.length).toBe(before + 20);
  });

  test("takes over at once when the old one ends first", async () => {
    await using run = new Run(full);
    await run.settle();
    const old = run.stream;
    run.curators.onWatch = (stream) => stream.send(nodesEvent([node("x")]));
    run.follower.reopen(0);
    await run.settle();
    old.end(unavailable("a:1"));
    await run.settle();
    expect(run.follower.state.get()).toMatchObject({ state: "connected", fullPicture: false });
    run.stream.send(nodesEvent([], true));
    await run.settle();
    expect(run.seen).toEqual([
      "1 opened at a:1",
      "1 a last",
      "2 opened at a:1 beside 1",
      "2 x",
      "1 closed",
      "2 last",
    ]);
    expect(run.follower.state.get()).toMatchObject({ fullPicture: true });
    expect(run.curators.streams).toHaveLength(2);
  });

  test("stands beside nothing when the old one ended before it was taken", async () => {
    await using run = new Run(full);
    await run.settle();
    const old = run.stream;
    run.curators.onWatch = () => {};
    run.follower.reopen(0);
    await run.settle();
    old.end(unavailable("a:1"));
    await run.settle();
    full(run.stream);
    await run.settle();
    expect(run.seen).toEqual(["1 opened at a:1", "1 a last", "1 closed", "2 opened at a:1", "2 a last"]);
  });

  test("is tried again when it ends before its picture is full, the old one unharmed", async () => {
    await using run = new Run(full);
    await run.settle();
    run.curators.onWatch = (stream) => {
      stream.send(nodesEvent([node("x")]));
      stream.end(unavailable("a:1"));
    };
    run.follower.reopen(0);
    await run.settle();
    expect(run.seen.slice(2)).toEqual(["2 opened at a:1 beside 1", "2 x", "2 closed"]);
    expect(run.follower.state.get()).toMatchObject({ state: "connected", fullPicture: true });
    expect(run.problems).toEqual([]);
    run.curators.onWatch = full;
    await run.clock.advance(5_000);
    expect(run.seen.slice(5)).toEqual(["3 opened at a:1 beside 1", "3 a last", "1 closed"]);
  });

  test("is given up when it is never full, and tried again", async () => {
    await using run = new Run(full);
    await run.settle();
    run.curators.onWatch = (stream) => stream.send(nodesEvent([node("x")]));
    run.follower.reopen(0);
    await run.clock.advance(10 * 60_000);
    await run.clock.advance(10_000);
    expect(run.seen.slice(2, 6)).toEqual([
      "2 opened at a:1 beside 1",
      "2 x",
      "2 closed",
      "3 opened at a:1 beside 1",
    ]);
    expect(run.curators.streams.map(({ open }) => open)).toEqual([true, false, true]);
  });

  test("is not needed while the running one's picture is not full, nor twice at a time", async () => {
    await using run = new Run();
    await run.settle();
    run.follower.reopen(0);
    await run.clock.advance(1_000);
    expect(run.curators.streams).toHaveLength(1);
    full(run.stream);
    await run.clock.advance(60_000);
    expect(run.curators.streams).toHaveLength(1);
    for (const delayMs of [0, -5, 10, 20]) run.follower.reopen(delayMs);
    await run.clock.advance(1_000);
    expect(run.curators.streams).toHaveLength(2);
  });

  test("is asked for while nothing can be reached, and then has nothing to do", async () => {
    await using run = new Run((stream) => stream.end(unavailable("a:1")));
    await run.settle();
    run.follower.reopen(1_000);
    await run.clock.advance(60_000);
    run.curators.onWatch = full;
    await run.clock.advance(60_000);
    expect(run.seen).toHaveLength(2);
  });

  test("keeps its time over a reconnect", async () => {
    await using run = new Run(full);
    await run.settle();
    run.follower.reopen(300_000);
    run.stream.end(unavailable("a:1"));
    await run.clock.advance(299_000);
    expect(run.seen.slice(2)).toEqual(["1 closed", "2 opened at a:1", "2 a last"]);
    await run.clock.advance(1_000);
    expect(run.seen.slice(5)).toEqual(["3 opened at a:1 beside 2", "3 a last", "2 closed"]);
  });

  test("comes once in 24 h without any reason", async () => {
    await using run = new Run(full);
    const hourMs = 60 * 60_000;
    await run.clock.advance(21 * hourMs);
    expect(run.curators.streams).toHaveLength(1);
    await run.clock.advance(3 * hourMs);
    expect(run.seen.slice(2)).toEqual(["2 opened at a:1 beside 1", "2 a last", "1 closed"]);
    await run.clock.advance(24 * hourMs);
    expect(run.seen.slice(5)).toEqual(["3 opened at a:1 beside 2", "3 a last", "2 closed"]);
  });

  test("never comes for a Curator that sends no LAST_BACKLOGGED", async () => {
    await using run = new Run((stream) => stream.send(nodesEvent([node("a")])));
    await run.clock.advance(72 * 60 * 60_000);
    expect(run.curators.streams).toHaveLength(1);
  });
});

/** What may happen to a follower: something at its newest stream or the one before, a wish, or time. */
const happening = oneof(
  record({ kind: constantFrom("nodes", "last", "headers", "end", "tooLarge"), back: nat(1) }),
  record({ kind: constantFrom("reopen", "time"), ms: nat(60_000) }),
);

test("whatever happens, streams begin, go on and end in order, two at most, and none is left behind", async () => {
  await assert(
    asyncProperty(array(happening, { maxLength: 40 }), async (happenings) => {
      const run = new Run(() => {}, ["a:1", "b:2"]);
      for (const each of happenings) {
        await run.settle();
        if ("ms" in each) {
          if (each.kind === "reopen") run.follower.reopen(each.ms);
          else await run.clock.advance(each.ms);
          continue;
        }
        const stream = run.curators.streams.at(-1 - each.back);
        if (each.kind === "nodes") stream?.send(nodesEvent([node("n")]));
        else if (each.kind === "last") stream?.send(nodesEvent([], true));
        else if (each.kind === "headers" && stream?.open === true) stream.headers();
        else if (each.kind === "end") stream?.end(unavailable(stream.address));
        else if (each.kind === "tooLarge") stream?.end(tooLarge);
        await run.settle();
        expect(run.curators.streams.filter(({ open }) => open).length).toBeLessThanOrEqual(2);
        expect(run.curators.open.size).toBeLessThanOrEqual(1);
        // A stream that has brought something is one that announcements can go to, and the other way round.
        expect(run.follower.connection.get() !== undefined).toBe(openInWords(run.seen).size > 0);
      }
      // Time alone brings it back.
      run.curators.onWatch = full;
      if (openInWords(run.seen).size === 0) {
        run.stream.end(unavailable("a:1"));
        await run.clock.advance(30_000);
        expect(run.follower.state.get()).toMatchObject({ state: "connected", fullPicture: true });
        expect(run.problems).toEqual([]);
      }
      await run[Symbol.asyncDispose]();
    }),
    { numRuns: 300 },
  );
});

/** Numbers of the streams that are open by what the consumer was told; throws when it was told nonsense. */
function openInWords(seen: readonly string[]): Set<number> {
  const open = new Set<number>();
  let newest = 0;
  for (const line of seen) {
    const number = Number(line.split(" ")[0]);
    const beside = / beside (\d+)$/.exec(line)?.[1];
    if (line.includes(" opened at ")) {
      if (number <= newest) throw new Error(`number used twice: ${line}`);
      if (beside !== undefined && !open.has(Number(beside))) throw new Error(`beside nothing: ${line}`);
      newest = number;
      open.add(number);
    } else if (!open.has(number)) {
      throw new Error(`not open: ${line}`);
    } else if (line.endsWith(" closed")) {
      open.delete(number);
    }
  }
  return open;
}

describe("at a real server", () => {
  test("follows it through ends, a lost port and a second address", async () => {
    await using first = await FakeCurator.start();
    await using second = await FakeCurator.start();
    for (const curator of [first, second]) {
      curator.backlog(nodeBytes({ id: "self" }), nodeBytes({ id: "b" }));
    }
    const follower = createFollower(
      {
        addresses: [first.address, second.address],
        self,
        connect: (address) => connectGrpc(address, { nodeId: self }),
      },
      { clock: systemClock, log: silentLogger },
    );
    const stop = new AbortController();
    const seen: string[] = [];
    const done = (async () => {
      for await (const event of follower.follow(stop.signal)) seen.push(inWords(event));
    })();
    try {
      await waitFor(() => seen.length === 2, "the first picture");
      first.endStreams();
      await waitFor(() => seen.length === 5, "the picture after the stream's end");
      first.pause();
      await waitFor(() => seen.length === 8, "the picture of the second Curator");
      follower.reopen(0);
      await waitFor(() => seen.length === 11, "a picture beside the other");
    } finally {
      stop.abort();
      await done;
    }
    const number = (at: number): string => seen[at]?.split(" ")[0] ?? "";
    expect(seen).toEqual([
      ...pictureAt(first.address, "1"),
      "1 closed",
      ...pictureAt(first.address, "2"),
      "2 closed",
      ...pictureAt(second.address, number(6)),
      ...pictureAt(second.address, number(8), ` beside ${number(6)}`),
      `${number(6)} closed`,
    ]);
    await waitFor(() => second.seen().streams.every(({ open }) => !open), "all streams closed");
    expect(follower.connection.get()).toBeUndefined();
  });
});
