/**
 * The Curator gone, silent, or sending nonsense, under traffic: the mesh does not feel it (C4.8, C4.11).
 *
 * Every fault is made while 200 pings a second go to a real peer. "No command" is shown twice: by what the agent calls,
 * and by the interface before and after.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { Node, WatchEvent } from "../../src/gen/curator.ts";
import { recordedBytes } from "../core/watch-fixture.ts";
import { node, type Refusal, type Seen } from "../fakes/curator.ts";
import type { Manner } from "../fakes/impostor.ts";
import type { RemoteCurator } from "../fakes/remote-curator.ts";
import { Agent, scriptedCurator } from "../lab/agent.ts";
import type { BarePeer } from "../lab/bare-peer.ts";
import { type Fault, type TrafficOptions, underTraffic, unharmed } from "../lab/fault.ts";
import { Lab } from "../lab/lab.ts";
import { long } from "../lab/long.ts";
import { crowdOf, freshMachine, paperNode, soonMs, Stage } from "../lab/stage.ts";
import { leastMemory, memoryComesDownTo, processorMsOf } from "../lab/usage.ts";
import { waitFor } from "../lab/wait.ts";

/** A Curator that says nothing more is found within this time (C4.10). */
const silentMs = 20_000;
/** The longest wait between two tries (C4.10). */
const backoffMs = 15_000;

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

/** The interface as `wg` shows it, without what traffic changes: handshakes and counters. */
async function interfaceOf(stage: Stage): Promise<readonly string[]> {
  const dump = await stage.agent.machine.exec(["wg", "show", "clusternet", "dump"]);
  const [own = "", ...peers] = dump.split("\n");
  const [_privateKey, ...settings] = own.split("\t");
  const lines = peers.map((line) => {
    const [key, _presharedKey, endpoint, allowedIps = "", ...rest] = line.split("\t");
    const sorted = allowedIps.split(",").toSorted((a, b) => (a < b ? -1 : 1));
    return [key, endpoint, ...sorted, rest[3]].join(" ");
  });
  // In an order of their own each time.
  return [settings.join(" "), ...lines.toSorted((a, b) => (a < b ? -1 : 1))];
}

/** Makes the fault under traffic; the mesh must not feel it, and no command may be run. */
async function unfelt(
  stage: Stage,
  peer: BarePeer,
  name: string,
  act: (fault: Fault) => Promise<void>,
  options: TrafficOptions = {},
): Promise<void> {
  await stage.recorder.clear();
  const before = await interfaceOf(stage);
  const outcome = await underTraffic(stage, peer, name, act, options);
  expect(outcome).toEqual(unharmed);
  expect(await stage.recorder.changes()).toEqual([]);
  expect(await interfaceOf(stage)).toEqual(before);
}

/** The agent watches and has the full picture. */
async function watching(stage: Stage, limitMs: number): Promise<void> {
  await stage.agent.status(
    ({ curator, problems }) => curator.state === "connected" && curator.fullPicture && problems.length === 0,
    limitMs,
  );
}

test.concurrent("a Curator that is gone for a while is reported and missed by nobody, and watched again when it is back", async () => {
  await using stage = await Stage.create(lab);
  const b = await stage.peer("b", 2);
  await watching(stage, soonMs);
  await unfelt(stage, b, `Curator gone for ${long ? 60 : 3} s`, async (fault) => {
    await stage.curator.call.pause();
    await stage.problems((found) => found.includes("curator-unreachable -"), soonMs);
    await Bun.sleep(long ? 60_000 : 3_000);
    await fault.make(() => stage.curator.call.resume());
    await fault.heal(() => watching(stage, backoffMs + soonMs));
  });
}, 180_000);

test.concurrent("a Curator whose packets are dropped is found within 20 s, and watched again one backoff after they pass", async () => {
  await using stage = await Stage.create(lab);
  const b = await stage.peer("b", 2);
  await watching(stage, soonMs);
  await unfelt(stage, b, "no FIN: the Curator's packets are dropped", async (fault) => {
    const cut = await lab.isolate(stage.curator.machine);
    await stage.agent.status(({ curator }) => curator.state !== "connected", silentMs);
    await stage.problems((found) => found.includes("curator-unreachable -"), soonMs);
    await fault.make(() => cut.restore());
    await fault.heal(() => watching(stage, backoffMs));
  });
}, 120_000);

/** Status UNIMPLEMENTED: what a Curator that does not lead answers to Watch. */
const notLeading = { code: 12, message: "unknown service" };

type Member = Stage["curator"];

function idOf({ machine }: Member): string {
  return `member-${machine.name}`;
}

/** This one leads from now on, and all of these say so. */
async function lead(leader: Member, all: readonly Member[]): Promise<void> {
  await leader.call.refuseWatches();
  const { address: host } = leader.machine;
  for (const each of all) {
    await each.call.leader({ nodeId: idOf(leader), host, port: 7835, thisNodeId: idOf(each) });
    if (each === leader) continue;
    await each.call.refuseWatches(notLeading);
    await each.call.endStreams(notLeading);
  }
}

/** The first of two Curators leads and falls silent, so that the second one leads; later it speaks and leads again. */
async function silence(
  name: string,
  fallSilent: (first: Member) => Promise<() => Promise<unknown>>,
): Promise<void> {
  await using second = await scriptedCurator(lab, `second-${crypto.randomUUID().slice(0, 4)}`);
  await using stage = await Stage.create(lab, {
    curators: [second.address],
    prepare: async (first) => await lead(first, [first, second]),
  });
  const first = stage.curator;
  const b = await stage.peer("b", 2);
  const isAt = async ({ address }: RemoteCurator, limitMs: number): Promise<void> => {
    await stage.agent.status(
      ({ curator }) => curator.state === "connected" && curator.address === address,
      limitMs,
    );
  };
  await isAt(first, soonMs);
  // The second one knows the same nodes, and one more.
  const self = (await first.call.current("a")) ?? expect.unreachable();
  const added = paperNode("added", "198.51.100.1", ["10.192.100.0/24"]);
  await second.call.backlog(self, b.node("b"), added.bytes);
  const outcome = await underTraffic(stage, b, name, async (fault) => {
    let speakAgain: (() => Promise<unknown>) | undefined;
    await fault.make(async () => {
      speakAgain = await fallSilent(first);
      // The one that hangs cannot say that it leads no more.
      await lead(second, [second]);
    });
    try {
      await fault.heal(async () => {
        await stage.agent.status(({ curator }) => curator.state !== "connected", silentMs);
        // The first one is given one more chance, which takes as long as a connection may.
        await isAt(second, soonMs);
        await stage.holds([b.allowed, added.allowed]);
      });
    } finally {
      await speakAgain?.();
    }
    await lead(first, [first, second]);
    await isAt(first, backoffMs + soonMs);
  });
  expect(outcome).toEqual(unharmed);
}

test.concurrent("a leader that is stopped is found within 20 s and the next one used, until it leads again (case 42)", async () => {
  await silence("leader stopped (SIGSTOP), until the next one is used", async ({ pid }) => {
    process.kill(pid, "SIGSTOP");
    return async () => process.kill(pid, "SIGCONT");
  });
}, 120_000);

test.concurrent("a leader whose packets are dropped is left for the next one in the same way (case 42)", async () => {
  await silence("leader's packets dropped, until the next one is used", async ({ machine }) => {
    const cut = await lab.isolate(machine);
    return () => cut.restore();
  });
}, 120_000);

/** All that gRPC knows, and numbers that nobody knows. */
const codes = [...Array(17).keys(), 17, 99, 2 ** 31 - 1, -1];

const manners: readonly { readonly manner: Manner; readonly about: string; readonly told?: string }[] = [
  { manner: "closes", about: "a Curator that accepts and closes at once" },
  { manner: "resets", about: "a Curator that accepts and resets at once" },
  { manner: "silent", about: "a Curator that accepts and never answers" },
  { manner: "noise", about: "bytes of no protocol" },
  { manner: "http1", about: "HTTP/1.1 502" },
  { manner: "tls-alert", about: "a TLS alert" },
  { manner: "http2-404", about: "HTTP status 404" },
  { manner: "http2-503", about: "HTTP status 503" },
  { manner: "http2-page", about: "HTTP status 200 with a page", told: "event-too-large" },
];

function refused(code: number): Refusal {
  return { code, message: "refused by test" };
}

test.concurrent("a Curator that answers with any status, or with OK and nothing, is asked again until it serves", async () => {
  // The longest wait, of an announcement that is refused, is 0.3 s.
  await using stage = await Stage.create(lab, { clockSpeed: 200 });
  const { call } = stage.curator;
  const b = await stage.peer("b", 2);
  await watching(stage, soonMs);
  /** Returns when two more have come. */
  const twoMore = async (what: string, count: (seen: Seen) => number): Promise<void> => {
    const before = count(await call.seen());
    await waitFor(async () => count(await call.seen()) >= before + 2, {
      limitMs: soonMs,
      what,
      detail: () => stage.agent.process.describe(),
    });
  };
  const tell = /^(curator-unreachable|announce-refused) /;

  await unfelt(stage, b, `Watch answered with ${codes.length} status codes in turn`, async (fault) => {
    for (const code of codes) {
      await call.refuseWatches(refused(code));
      if (code === codes[0]) await call.endStreams();
      await twoMore(`tries that are answered with ${code}`, ({ streams }) => streams.length);
    }
    await stage.problems((found) => found.some((each) => tell.test(each)));
    await fault.make(() => call.refuseWatches());
    await fault.heal(() => watching(stage, backoffMs));
  });

  const refusals = codes.filter((code) => code !== 0);
  const name = `announcement answered with ${refusals.length} status codes in turn`;
  await unfelt(stage, b, name, async (fault) => {
    const { address } = stage.agent.machine;
    const wanted = Node.decode((await call.current("a")) ?? expect.unreachable()).clusternet;
    for (const code of refusals) {
      await call.refuseAnnouncements(refused(code));
      // The Curator has lost what this node announced.
      if (code === refusals[0]) await call.put(node({ id: "a", address }));
      await twoMore(`announcements that are answered with ${code}`, (seen) => seen.announcements.length);
    }
    await stage.problems((found) => found.some((each) => tell.test(each)));
    await fault.make(() => call.refuseAnnouncements());
    await fault.heal(async () => {
      await waitFor(
        async () => {
          const shown = Node.decode((await call.current("a")) ?? expect.unreachable()).clusternet;
          return Bun.deepEquals(shown, wanted);
        },
        { limitMs: backoffMs, what: "the whole announcement", detail: () => stage.agent.process.describe() },
      );
      await watching(stage, backoffMs);
    });
  });
}, 120_000);

test.concurrent("whatever answers in place of the Curator is reported, and the Curator is watched again when it is back", async () => {
  await using stage = await Stage.create(lab, { clockSpeed: 20 });
  const { call } = stage.curator;
  const b = await stage.peer("b", 2);
  await watching(stage, soonMs);
  // There are many of them.
  const fewer = long ? {} : { pings: 200 };
  for (const { manner, about, told = "curator-unreachable" } of manners) {
    await unfelt(
      stage,
      b,
      `instead of the Curator: ${about}`,
      async (fault) => {
        const { callers } = await call.seen();
        await call.pretend(manner);
        // The first bytes of a page are taken for the length of a message.
        await stage.problems((found) => found.includes(`${told} -`));
        await waitFor(async () => (await call.seen()).callers.length >= callers.length + 3, {
          limitMs: 20_000 + soonMs,
          what: `three tries at an address that ${manner}`,
          detail: () => stage.agent.process.describe(),
        });
        await fault.make(() => call.resume());
        await fault.heal(() => watching(stage, backoffMs));
      },
      fewer,
    );
  }
}, 120_000);

test.concurrent("a backlog that ends half way, has no end, lacks this node, is empty, or names 3 of 300 nodes removes nobody", async () => {
  const crowd = crowdOf(299).map(({ bytes }) => bytes);
  await using stage = await Stage.create(lab, {
    // The five minutes of a held picture are five seconds.
    clockSpeed: 60,
    prepare: async (curator) => await curator.call.backlog(...crowd),
  });
  const { call } = stage.curator;
  const b = await stage.peer("b", 2);
  const all = async (): Promise<Uint8Array[]> => {
    const self = await call.current("a");
    return [...crowd, b.node("b"), ...(self === undefined ? [] : [self])];
  };
  const whole = await all();
  const [first] = crowd;
  const self = (await call.current("a")) ?? expect.unreachable();
  await stage.agent.peers((peers) => peers.length === 300, soonMs);
  await watching(stage, soonMs);
  // From here on the Curator shows what the test says, whatever the agent announces.
  await call.reflect(false);
  const streams = async (): Promise<number> => (await call.seen()).streams.length;
  const heal = async (fault: Fault): Promise<void> => {
    await fault.make(async () => {
      await call.backlog(...whole);
      await call.style({});
      await call.endStreams();
    });
    await fault.heal(() => watching(stage, backoffMs));
  };
  const reported = (kind: string) => stage.problems((found) => found.includes(`${kind} -`));

  await unfelt(stage, b, "stream ended in the middle of the backlog, five times", async (fault) => {
    await call.style({ nodesPerEvent: 50, endAfter: 3 });
    await call.endStreams();
    const before = await streams();
    await waitFor(async () => (await streams()) >= before + 5, {
      limitMs: backoffMs + soonMs,
      what: "five streams that end in their backlog",
      detail: () => stage.agent.process.describe(),
    });
    await heal(fault);
  });

  await unfelt(stage, b, "no LAST_BACKLOGGED, and half of the nodes", async (fault) => {
    await call.style({ last: "never" });
    await call.backlog(...whole.slice(150));
    await call.endStreams();
    await stage.agent.status(
      ({ curator }) => curator.state === "connected" && !curator.fullPicture,
      backoffMs,
    );
    await stage.resyncs(2);
    await heal(fault);
  });

  await unfelt(stage, b, "full picture without this node and nine others", async (fault) => {
    await call.backlog(...whole.slice(9, -1));
    await call.endStreams();
    await reported("picture-without-self");
    await stage.resyncs(2);
    await heal(fault);
  });

  await unfelt(stage, b, "empty full picture", async (fault) => {
    await call.backlog();
    await call.endStreams();
    await reported("picture-without-self");
    await stage.resyncs(2);
    await heal(fault);
  });

  const three = [first ?? expect.unreachable(), b.node("b"), self];
  await unfelt(stage, b, "full picture of 3 of 301 nodes", async (fault) => {
    await call.backlog(...three);
    await call.endStreams();
    await reported("picture-shrunk");
    await stage.resyncs(2);
    await heal(fault);
  });

  // A Curator that lost its data while the agent was away, and is faster than the agent's look at its host.
  await unfelt(
    stage,
    b,
    "full picture of 3 of 301 nodes to an agent that is killed and started",
    async (fault) => {
      await stage.agent.kill();
      await call.backlog(...three);
      stage.agent = await stage.agent.restart();
      await reported("picture-shrunk");
      await stage.agent.peers((peers) => peers.length === 300, 1);
      await stage.resyncs(2);
      await heal(fault);
    },
  );

  await call.backlog(...three);
  await call.endStreams();
  const outcome = await underTraffic(
    stage,
    b,
    "the same, and another stream agrees after 5 min",
    async (fault) => {
      await fault.make(() => reported("picture-shrunk"));
      await fault.heal(() => stage.agent.peers((peers) => peers.length === 2, 2 * soonMs));
      await watching(stage, soonMs);
    },
  );
  expect(outcome).toEqual(unharmed);
}, 180_000);

test.concurrent("a tombstone that the real Curator lost is noticed by the nodes that come again, and the deleted node goes", async () => {
  const [backlog, ...again] = recordedBytes(7);
  const before = WatchEvent.decode(backlog ?? expect.unreachable()).nodes;
  const deleted = "metropolis-ad6416524bafb7a781d46f4e05fd8170";
  await using stage = await Stage.create(lab, {
    // The first minute of a stream is three seconds, and so is the longest wait for the second stream.
    clockSpeed: 20,
    nodeId: "metropolis-9a41c3795f4e6863b51eceaf11b545c8",
    prepare: async (curator) => {
      await curator.call.reflect(false);
      await curator.call.backlog(...before);
    },
  });
  const { call } = stage.curator;
  const b = await stage.peer("b", 2);
  const keys = async (): Promise<readonly string[]> =>
    (await stage.agent.peers(() => true, soonMs)).map(([key = ""]) => key);
  const keysBefore = await keys();
  // This node itself is among those in the recording.
  expect(keysBefore.length).toBe(before.length);
  const [stream] = (await call.seen()).streams;
  await waitFor(() => Date.now() - (stream?.openedAt ?? Infinity) > 60_000 / 20, {
    limitMs: soonMs,
    what: "the end of the stream's first minute",
  });
  const outcome = await underTraffic(
    stage,
    b,
    "tombstone lost by the real Curator (as recorded)",
    async (fault) => {
      await fault.make(async () => {
        await call.forget(deleted);
        for (const event of again) await call.push(event);
      });
      await fault.heal(() => stage.agent.peers((peers) => peers.length < keysBefore.length, soonMs));
    },
  );
  expect(outcome).toEqual(unharmed);
  const gone = Node.decode(before.find((each) => Node.decode(each).id === deleted) ?? expect.unreachable());
  expect(await keys()).toEqual(keysBefore.filter((key) => key !== gone.clusternet?.wireguardPubkey));
  // The second one stands beside the first until its picture is full.
  await waitFor(async () => (await call.seen()).streams.map(({ open }) => open).join() === "false,true", {
    limitMs: soonMs,
    what: "the second stream in place of the first",
  });
}, 60_000);

/** When the agent tried, in ms since 1970. */
function triesOf(all: Seen["callers"], { machine: { address } }: Agent): readonly number[] {
  return all.filter((each) => each.address.endsWith(address)).map(({ at }) => at);
}

/** The backoff's mean at its longest, with full jitter: 15 s at most. */
const meanWaitMs = backoffMs / 2;

test.concurrent("2,000 tries at a Curator that is away cost no memory and little time, and no two agents try in step", async () => {
  // Every wait is a thousandth, so that a wait of the longest backoff is 7.5 ms in the mean.
  await using stage = await Stage.create(lab, { clockSpeed: 1_000 });
  const { call } = stage.curator;
  const b = await stage.peer("b", 2);
  // Slower, so that a common step would not be blurred by a busy machine.
  const others = await Promise.all(
    ["c", "d", "e"].map(async (nodeId) =>
      Agent.start(await freshMachine(lab, nodeId), {
        curator: stage.curator.address,
        directory: stage.directory,
        nodeId,
        flags: ["--resync", "3600", "--report-status", "on"],
        env: { CLUSTERNET_CLOCK_SPEED: "20" },
      }),
    ),
  );
  try {
    await stage.agent.peers((peers) => peers.length === 1 + others.length, soonMs);
    await watching(stage, soonMs);
    const callers = async (): Promise<Seen["callers"]> => (await call.seen()).callers;
    const tried = async (count: number): Promise<void> => {
      await waitFor(async () => triesOf(await callers(), stage.agent).length >= count, {
        limitMs: 150_000,
        everyMs: 250,
        what: `${count} tries`,
        detail: () => stage.agent.process.describe(),
      });
    };
    const { pid } = stage.agent.process;
    let said = "";
    await unfelt(stage, b, "Curator away for 2,000 tries", async (fault) => {
      await call.pretend("closes");
      // What is loaded and compiled at the first failures is no leak.
      await tried(200);
      const startedMs = processorMsOf(pid);
      const before = await leastMemory(pid, () => tried(600));
      await tried(2_200);
      const eachMs = (processorMsOf(pid) - startedMs) / 2_000;
      const after = await memoryComesDownTo(pid, before + 20);
      const share = eachMs / meanWaitMs;
      said = `2,000 tries: ${eachMs.toFixed(1)} ms of a processor each, ${(share * 100).toFixed(2)} % at the longest backoff; memory ${before.toFixed(1)} MB, then ${after.toFixed(1)} MB`;
      expect(share).toBeLessThan(0.02);
      await fault.make(() => call.resume());
      await fault.heal(() => watching(stage, backoffMs));
    });
    console.log(said);

    // By chance a tenth of one agent's tries lie within a twentieth of the mean wait of another's; in step all would.
    const all = await callers();
    for (const one of others) {
      for (const other of others) {
        if (one === other) continue;
        const [mine, theirs] = [triesOf(all, one), triesOf(all, other)];
        expect(mine.length).toBeGreaterThan(30);
        const near = mine.filter((at) => theirs.some((each) => Math.abs(each - at) <= meanWaitMs / 20 / 20));
        expect(near.length / mine.length).toBeLessThan(0.35);
      }
    }
  } finally {
    for (const each of others) await each.kill();
  }
}, 240_000);
