/**
 * The follower against Curators in memory and a clock turned by hand; at the end against a real server.
 */
import { describe, expect, test } from "bun:test";
import { array, assert, asyncProperty, constantFrom, nat, oneof, record } from "fast-check";
import { systemClock } from "../../src/async.ts";
import type { Node, NodeId } from "../../src/core/node.ts";
import type { CuratorConnection, DecodedEvent } from "../../src/curator/connection.ts";
import { createFollower, type CuratorFollower, type StreamEvent } from "../../src/curator/follower.ts";
import { connectGrpc } from "../../src/curator/grpc-connection.ts";
import { CuratorError } from "../../src/errors.ts";
import { silentLogger } from "../../src/log.ts";
import { FakeClock } from "../fakes/clock.ts";
import { FakeCurator, node as nodeBytes } from "../fakes/curator.ts";
import { eventually } from "../fakes/eventually.ts";

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

/** Curators in memory: what each does when it is watched. */
class FakeCurators {
  readonly streams: FakeStream[] = [];
  /** Addresses of all connections so far, and of those that are not closed. */
  readonly connected: string[] = [];
  readonly open = new Set<CuratorConnection>();
  /** Called for each new stream; does nothing unless set: a Curator that is silent. */
  onWatch: (stream: FakeStream) => void = () => {};

  connect = (address: string): CuratorConnection => {
    this.connected.push(address);
    const connection: CuratorConnection = {
      address,
      watchNodes: (signal, onHeaders) => this.#watch(address, signal, onHeaders ?? (() => {})),
      announce: () => Promise.resolve(),
      reportStatus: () => Promise.resolve(),
      close: () => this.open.delete(connection),
    };
    this.open.add(connection);
    return connection;
  };

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
    prepare: (clock: FakeClock) => void = () => {},
  ) {
    prepare(this.clock);
    this.curators.onWatch = onWatch;
    this.follower = createFollower(
      { addresses, self, connect: this.curators.connect },
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
  return [`${stream} opened at ${address}${beside}`, `${stream} self`, `${stream} b last`];
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

  test("without having brought anything keeps the backoff growing, also when it ended well", async () => {
    await using run = new Run((stream) => {
      stream.headers();
      stream.end();
    });
    await run.clock.advance(60_000);
    expect(run.curators.connected.length).toBeLessThan(14);
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

  test("comes within a minute when the Curator sends its nodes again, and not twice in ten minutes", async () => {
    const four = ["a", "b", "c", "d"].map((id) => node(id));
    await using run = new Run((stream) => stream.send(nodesEvent(four, true)));
    await run.clock.advance(61_000);
    // Nothing is wrong with nodes that changed, nor with one or two that did not.
    run.stream.send(...four.map(({ id }) => nodesEvent([node(id, "K")])));
    run.stream.send(nodesEvent([node("a", "K")]), nodesEvent([node("b", "K")]));
    await run.clock.advance(60_000);
    expect(run.curators.streams).toHaveLength(1);
    const again = ["a", "b", "c", "d"].map((id) => nodesEvent([node(id, "K")]));
    run.stream.send(...again);
    await run.clock.advance(29_000);
    expect(run.curators.streams).toHaveLength(1);
    await run.clock.advance(1_000);
    expect(run.curators.streams).toHaveLength(2);
    await run.clock.advance(90_000);
    run.stream.send(...four.map((each) => nodesEvent([each])));
    await run.clock.advance(60_000);
    expect(run.curators.streams).toHaveLength(2);
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
      curator.style({ nodesPerEvent: 1 });
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
      await eventually(() => seen.length === 3, "the first picture");
      first.endStreams();
      await eventually(() => seen.length === 7, "the picture after the stream's end");
      first.pause();
      await eventually(() => seen.length === 11, "the picture of the second Curator");
      follower.reopen(0);
      await eventually(() => seen.length === 15, "a picture beside the other");
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
      ...pictureAt(second.address, number(8)),
      ...pictureAt(second.address, number(11), ` beside ${number(8)}`),
      `${number(8)} closed`,
    ]);
    await eventually(() => second.seen().streams.every(({ open }) => !open), "all streams closed");
    expect(follower.connection.get()).toBeUndefined();
  });
});
