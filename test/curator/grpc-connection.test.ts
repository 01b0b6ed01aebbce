/**
 * The connection against a real gRPC server: what is sent, what comes back, and how long each kind of silence is
 * waited for.
 */
import { describe, expect, test } from "bun:test";
import type { Announcement } from "../../src/core/announcement.ts";
import type { PublicKey } from "../../src/core/key.ts";
import type { NodeId } from "../../src/core/node.ts";
import { parseAddress, parsePrefix } from "../../src/core/prefix.ts";
import { type CuratorConnection, isConnectionLost, isEventTooLarge } from "../../src/curator/connection.ts";
import { connectGrpc } from "../../src/curator/grpc-connection.ts";
import { CuratorError, describeError } from "../../src/errors.ts";
import { NodeStatus } from "../../src/gen/common.ts";
import { event, FakeCurator, node } from "../fakes/curator.ts";
import { RemoteCurator } from "../fakes/remote-curator.ts";
import { TcpProxy } from "../fakes/tcp-proxy.ts";
import { waitFor } from "../lab/wait.ts";

const self = "self" as NodeId;
const announcement: Announcement = {
  publicKey: "KEY" as PublicKey,
  prefixes: ["192.0.2.1/32", "10.192.1.0/24"].map(parsePrefix),
};
const forever = new AbortController().signal;

/** A connection that is closed at the end of the test's block. */
function connect(address: string, clusterNet?: string): CuratorConnection & Disposable {
  const clusterNets = clusterNet === undefined ? [] : [parsePrefix(clusterNet)];
  const connection = connectGrpc(address, { nodeId: self, clusterNets });
  return Object.assign(connection, { [Symbol.dispose]: () => connection.close() });
}

/** The error that the promise rejects with. */
async function errorOf(promise: Promise<unknown>): Promise<CuratorError> {
  const error = await promise.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  if (error instanceof CuratorError) return error;
  throw new Error(`expected a CuratorError, found ${String(error)}`);
}

/** Reads the stream to its end; returns the number of its events. */
async function drain(connection: CuratorConnection, onEvent: () => void = () => {}): Promise<number> {
  let events = 0;
  for await (const _ of connection.watchNodes(forever)) {
    events++;
    onEvent();
  }
  return events;
}

/** An event of so many MiB, and a little more. */
function eventOf(mebibytes: number): Uint8Array {
  const key = "x".repeat(1 << 20);
  return event({ nodes: Array.from({ length: mebibytes }, (_, at) => node({ id: `n${at}`, key })) });
}

async function durationOf(work: Promise<CuratorError>): Promise<{ error: CuratorError; seconds: number }> {
  const startMs = performance.now();
  const error = await work;
  return { error, seconds: (performance.now() - startMs) / 1000 };
}

describe("a watch", () => {
  test("yields every event, tells of headers, and returns when it is aborted", async () => {
    await using curator = await FakeCurator.start();
    // Apart, since events that come together are taken as one.
    curator.style({ nodesPerEvent: 1, pauseMs: 50, headersFirst: true });
    curator.backlog(node({ id: "self", address: "192.0.2.1" }), node({ id: "b" }));
    using connection = connect(curator.address);
    const stop = new AbortController();
    const seen: string[] = [];
    for await (const { nodes, lastBacklogged, selfStatus } of connection.watchNodes(stop.signal, () =>
      seen.push("headers"),
    )) {
      seen.push(`${nodes.map(({ id }) => id).join()} ${lastBacklogged} ${selfStatus?.length}`);
      if (lastBacklogged) stop.abort();
    }
    expect(seen).toEqual(["headers", "self false 11", "b true undefined"]);
    expect(curator.seen().streams).toMatchObject([{ nodeId: "self" }]);
  });

  test("takes many changes at once as few events, and loses none before the end of the stream", async () => {
    await using curator = await FakeCurator.start();
    using connection = connect(curator.address);
    const ids = Array.from({ length: 200 }, (_, at) => `n${at}`);
    const seen: string[] = [];
    let events = 0;
    const error = await errorOf(
      (async () => {
        for await (const { nodes, tombstones, lastBacklogged } of connection.watchNodes(forever)) {
          events++;
          seen.push(...nodes.map(({ id }) => id), ...tombstones.map((id) => `-${id}`));
          if (!lastBacklogged) continue;
          curator.put(...ids.map((id) => node({ id })));
          curator.remove("n7");
          curator.put(node({ id: "n7" }));
          curator.endStreams();
        }
      })(),
    );
    expect(error.code).toBe(14);
    expect(seen).toEqual([...ids, "-n7", "n7"]);
    expect(events).toBeLessThan(20);
  });

  test("throws at a message that is no event, after those that came with it", async () => {
    await using curator = await FakeCurator.start();
    using connection = connect(curator.address);
    const seen: string[] = [];
    const error = await errorOf(
      (async () => {
        for await (const { nodes, lastBacklogged } of connection.watchNodes(forever)) {
          seen.push(...nodes.map(({ id }) => id));
          if (!lastBacklogged) continue;
          curator.put(node({ id: "b" }));
          curator.push(new Uint8Array([0x0a, 0x7f]));
          curator.put(node({ id: "c" }));
        }
      })(),
    );
    expect(seen).toEqual(["b"]);
    expect([error.code, error.message]).toEqual([
      13,
      `Cannot watch nodes at Curator "${curator.address}": INTERNAL: index out of range: 2 + 127 > 2`,
    ]);
    await waitFor(() => curator.seen().streams.every(({ open }) => !open), "the stream is left");
  });

  const renew =
    "\n  hint: Renew this node's certificate (`clusternet pki issue` makes one), or set the clock of the Curator's machine";
  const ends = [
    {
      name: "that the Curator ends",
      refusal: { code: 14, message: "leadership lost" },
      want: "UNAVAILABLE: leadership lost",
    },
    {
      name: "with a text that would act on a terminal",
      refusal: { code: 5, message: 'gone \u001B[2J\n"x"' },
      want: 'NOT_FOUND: gone \\u{1b}[2J\\u{a}"x"',
    },
    {
      name: "with a code that gRPC does not know",
      refusal: { code: 77, message: "?" },
      want: "code 77: ?",
    },
    {
      name: "at a Curator that does not lead",
      refusal: { code: 12, message: "no" },
      want: "UNIMPLEMENTED: no\n  hint: Only the elected leader serves the mesh: give the address of every Curator with --curator",
    },
    {
      name: "at a Curator that has another CA",
      refusal: { code: 16, message: "its certificate is signed by another CA" },
      want:
        "UNAUTHENTICATED: its certificate is signed by another CA\n" +
        "  hint: Check that the node's certificate is signed by the CA of this cluster",
    },
    {
      name: "at our Curator, for a certificate that has expired",
      refusal: { code: 16, message: "its certificate expired on Jan  2 00:00:00 2026 GMT" },
      want: `UNAUTHENTICATED: its certificate expired on Jan  2 00:00:00 2026 GMT${renew}`,
    },
    {
      name: "in the words of Go's library, without the time at which they were said",
      refusal: {
        code: 16,
        message:
          "x509: certificate has expired or is not yet valid: current time 2026-12-02T16:33:41Z is after 2026-01-02T00:00:00Z",
      },
      want: `UNAUTHENTICATED: x509: certificate has expired or is not yet valid: the time there is after 2026-01-02T00:00:00Z${renew}`,
    },
  ];
  test.each(ends)("throws CuratorError $name", async ({ refusal, want }) => {
    await using curator = await FakeCurator.start();
    curator.refuseWatches(refusal);
    using connection = connect(curator.address);
    const error = await errorOf(drain(connection));
    expect(error.code).toBe(refusal.code);
    expect(describeError(error)).toBe(`Cannot watch nodes at Curator "${curator.address}": ${want}`);
    expect([isEventTooLarge(error), isConnectionLost(error)]).toEqual([false, false]);
  });

  test("throws when the Curator goes away, and when nobody listens any more", async () => {
    await using curator = await FakeCurator.start();
    using connection = connect(curator.address);
    const error = await errorOf(drain(connection, () => curator.pause()));
    expect(error.code).toBeOneOf([1, 14]);
    using again = connect(curator.address);
    expect(describeError(await errorOf(drain(again)))).toBe(
      `Cannot reach Curator "${curator.address}": connection refused\n` +
        "  hint: Does a Curator run there, on this address and port, and does no firewall refuse it?",
    );
  });

  test("takes an event of 63 MiB and says of one of 65 that it is too large", async () => {
    await using curator = await FakeCurator.start();
    using connection = connect(curator.address);
    const sizes: number[] = [];
    const error = await errorOf(
      (async () => {
        for await (const { nodes } of connection.watchNodes(forever)) {
          sizes.push(nodes.length);
          if (nodes.length === 0) curator.push(eventOf(63));
          else curator.push(eventOf(65));
        }
      })(),
    );
    expect(sizes).toEqual([0, 63]);
    expect(isEventTooLarge(error)).toBe(true);
    expect(error.message).toContain("RESOURCE_EXHAUSTED: Received message larger than max");
  });

  test("does not take in what nobody has read", async () => {
    await using curator = await RemoteCurator.start();
    using idle = connect(curator.address);
    using busy = connect(curator.address);
    const unread = idle.watchNodes(forever)[Symbol.asyncIterator]();
    await unread.next();
    const big = event({ nodes: [node({ id: "b", key: "x".repeat(1 << 20) })] });
    let events = 0;
    for await (const _ of busy.watchNodes(forever)) {
      if (++events === 1) await curator.call.push(big, { times: 200 });
      if (events === 201) break;
    }
    // As long as another stream took to be read whole, a greedy one has had to read ahead.
    const [waiting] = (await curator.call.seen()).streams.map((stream) => stream.waiting);
    expect(waiting).toBeGreaterThan(150);
    await unread.return?.();
  }, 30_000);
});

describe("the other calls", () => {
  test("announce() and reportStatus() send what they are given, as this node", async () => {
    await using curator = await FakeCurator.start();
    using connection = connect(curator.address);
    await connection.announce(announcement, forever);
    const externalAddress = parseAddress("192.0.2.1");
    await connection.reportStatus({ nodeId: self, externalAddress, time: new Date(1_000) }, forever);
    expect(curator.seen()).toMatchObject({
      announcements: [{ nodeId: "self", key: "KEY", prefixes: ["192.0.2.1/32", "10.192.1.0/24"], code: 0 }],
      statusReports: [{ nodeId: "self", externalAddress: "192.0.2.1", code: 0 }],
    });
    expect(NodeStatus.decode(curator.seen().statusReports[0]?.status ?? new Uint8Array()).timestamp).toEqual({
      seconds: 1n,
      nanos: 0,
    });
  });

  test.each([3, 5, 7, 8, 9, 12, 14, 16])("announce() throws CuratorError with code %d", async (code) => {
    await using curator = await FakeCurator.start();
    curator.refuseAnnouncements({ code, message: "no" });
    using connection = connect(curator.address);
    const error = await errorOf(connection.announce(announcement, forever));
    expect(error.code).toBe(code);
    expect(error.message).toMatch(/^Cannot announce to Curator "127\.0\.0\.1:\d+": [A-Z_]+: no$/);
  });

  test("announce() throws when it is aborted", async () => {
    await using curator = await FakeCurator.start();
    curator.hangCalls(true);
    using connection = connect(curator.address);
    const error = await errorOf(connection.announce(announcement, AbortSignal.timeout(50)));
    expect(error.message).toBe(
      `Cannot announce to Curator "${curator.address}": CANCELLED: stopped by this program`,
    );
  });
});

describe("a Curator inside ClusterNet", () => {
  test.each([
    { host: "127.0.0.1", where: "it lies inside ClusterNet 127.0.0.0/8" },
    { host: "localhost", where: "it resolves to 127.0.0.1, inside ClusterNet 127.0.0.0/8" },
  ])("given as $host is not dialled, by no call", async ({ host, where }) => {
    await using curator = await FakeCurator.start();
    const address = `${host}:${curator.address.split(":")[1]}`;
    using connection = connect(address, "127.0.0.0/8");
    const found = await Promise.all([
      errorOf(drain(connection)),
      errorOf(Array.fromAsync(connection.watchLeader(forever))),
      errorOf(connection.announce(announcement, forever)),
    ]);
    const want = `Cannot use Curator "${address}": ${where}`;
    expect(found.map(({ message, code }) => [message, code])).toEqual([
      [want, 14],
      [want, 14],
      [want, 14],
    ]);
    expect(curator.seen()).toMatchObject({ streams: [], announcements: [] });
  });

  test("is not one whose name leads elsewhere", async () => {
    await using curator = await FakeCurator.start();
    using connection = connect(`localhost:${curator.address.split(":")[1]}`, "10.192.0.0/11");
    for await (const { lastBacklogged } of connection.watchNodes(forever)) {
      expect(lastBacklogged).toBe(true);
      break;
    }
  });

  test("a name that cannot be resolved is one that cannot be reached, within the limit", async () => {
    using connection = connect("no-such-curator.invalid:7835", "10.192.0.0/11");
    const { error, seconds } = await durationOf(errorOf(drain(connection)));
    expect(error.message).toMatch(
      /^Cannot reach Curator "no-such-curator\.invalid:7835": (its name is not known|no name server answers)$/,
    );
    expect(seconds).toBeLessThan(10);
  }, 20_000);
});

// The limits as they are in the program: these take up to 20 s each, all at the same time.
describe.concurrent("silence", () => {
  test("a Curator that is stopped is found within 20 s", async () => {
    await using curator = await RemoteCurator.start();
    using connection = connect(curator.address);
    const { error, seconds } = await durationOf(
      errorOf(drain(connection, () => process.kill(curator.pid, "SIGSTOP"))),
    );
    expect(isConnectionLost(error)).toBe(true);
    expect(seconds).toBeWithin(7, 20);
  }, 30_000);

  test("a Curator whose packets are dropped is found within 20 s", async () => {
    await using curator = await FakeCurator.start();
    await using proxy = await TcpProxy.start(curator.address);
    using connection = connect(proxy.address);
    const { error, seconds } = await durationOf(
      errorOf(
        drain(connection, () => {
          proxy.silent = true;
        }),
      ),
    );
    expect(isConnectionLost(error)).toBe(true);
    expect(seconds).toBeWithin(7, 20);
  }, 30_000);

  test("a Curator that takes the connection and says nothing is given up after 5 s", async () => {
    await using curator = await FakeCurator.start();
    await using proxy = await TcpProxy.start(curator.address);
    proxy.silent = true;
    using connection = connect(proxy.address);
    const { error, seconds } = await durationOf(errorOf(drain(connection)));
    expect(error.message).toBe(`Cannot reach Curator "${proxy.address}": no answer within 5 s`);
    expect(seconds).toBeWithin(4, 10);
  }, 30_000);

  test("a Curator that still gathers its nodes is waited for longer than any of these", async () => {
    await using curator = await FakeCurator.start();
    curator.style({ silent: true });
    using connection = connect(curator.address);
    const stop = AbortSignal.timeout(21_000);
    for await (const _ of connection.watchNodes(stop)) throw new Error("it was to stay silent");
    expect(stop.aborted).toBe(true);
    expect(curator.seen().streams).toHaveLength(1);
  }, 40_000);

  test("a call that gets no answer is given up after 10 s", async () => {
    await using curator = await FakeCurator.start();
    curator.hangCalls(true);
    using connection = connect(curator.address);
    const { error, seconds } = await durationOf(errorOf(connection.announce(announcement, forever)));
    expect(error.message).toBe(
      `Cannot announce to Curator "${curator.address}": DEADLINE_EXCEEDED: no answer within 10 s`,
    );
    expect(seconds).toBeWithin(9, 15);
  }, 30_000);
});
