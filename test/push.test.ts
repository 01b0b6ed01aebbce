/**
 * push against a Curator that answers as it is told, with time turned by hand: every failure ends in the
 * announcement that was wanted, and nothing is announced that the Curator shows already.
 */
import { describe, expect, test } from "bun:test";
import { Value, aborted } from "../src/async.ts";
import type { Announcement } from "../src/core/announcement.ts";
import { asNodeId, type Node } from "../src/core/node.ts";
import { privateKeyFromBytes } from "../src/core/key.ts";
import { parsePrefix } from "../src/core/prefix.ts";
import type { CuratorConnection, StatusReport } from "../src/curator/connection.ts";
import { CuratorError } from "../src/errors.ts";
import { silentLogger } from "../src/log.ts";
import { alwaysAnswered, readOwn, type NetworkStatus, type Own } from "../src/own.ts";
import { Prefixes } from "../src/prefixes.ts";
import { ProblemLog } from "../src/problem-log.ts";
import type { PullState } from "../src/pull.ts";
import { Push } from "../src/push.ts";
import { FakeClock } from "./fakes/clock.ts";
import { metropolisRefusal } from "./fakes/metropolis.ts";
import { waitFor } from "./lab/wait.ts";

const self = asNodeId("a") ?? expect.unreachable();
const publicKey = privateKeyFromBytes(new Uint8Array(32).fill(1)).publicKey;
const clusterNets = ["10.192.0.0/11", "fd10:c1::/32"].map(parsePrefix);
const settings = { self, publicKey, clusterNets };

function own(podPrefixes: string, externalAddress = "192.0.2.1"): Own {
  return readOwn(settings, {
    podNetwork: new Value<Prefixes | undefined>(new Prefixes(podPrefixes.split(" "))),
    podNetworkState: new Value(alwaysAnswered),
    lastPodPrefixes: [],
    network: new Value<NetworkStatus | undefined>({ externalAddress }),
    mtu: new Value({ mtu: 1420, problems: [] }),
  });
}

/** This node as a picture shows it. */
function seen(...prefixes: readonly string[]): Node {
  return {
    id: self,
    state: "up",
    publicKey,
    externalAddress: "192.0.2.1",
    prefixes,
    prefixCount: prefixes.length,
    consensusMember: false,
  };
}

/** A Curator that takes the next answer of `answers` for each call; with none left it accepts. */
class FakeConnection implements CuratorConnection {
  readonly address = "127.0.0.1:7835";
  readonly announced: string[] = [];
  readonly reports: StatusReport[] = [];
  answers: number[] = [];
  /** Words of INVALID_ARGUMENT; undefined takes the prefixes. */
  judge: (prefixes: readonly string[]) => string | undefined = () => undefined;
  /** Each announcement, after "+" when it was taken and "-" when not. */
  readonly log: string[] = [];
  tries = 0;

  async *watchNodes(): AsyncIterable<never> {}

  async *watchLeader(): AsyncIterable<never> {}

  /** Until this resolves, no announcement is answered; one that is stopped is not either. */
  gate: Promise<void> = Promise.resolve();

  async announce({ prefixes }: Announcement, signal?: AbortSignal): Promise<void> {
    this.tries++;
    const code = this.answers.shift() ?? 0;
    await Promise.race([this.gate, ...(signal === undefined ? [] : [aborted(signal)])]);
    if (signal?.aborted === true) throw new CuratorError("Cannot announce: stopped", { code: 1 });
    const texts = prefixes.map((each) => each.text);
    const details = code === 0 ? this.judge(texts) : undefined;
    this.log.push(`${code === 0 && details === undefined ? "+" : "-"} ${texts.join(" ")}`);
    if (code !== 0) throw new CuratorError(`Cannot announce: code ${code}`, { code });
    if (details !== undefined) throw new CuratorError(`Cannot announce: ${details}`, { code: 3, details });
    this.announced.push(texts.join(" "));
  }

  reportStatus(report: StatusReport): Promise<void> {
    this.reports.push(report);
    return Promise.resolve();
  }

  close(): void {}
}

function start(reportStatus: "auto" | "on" | "off" = "auto") {
  const clock = new FakeClock();
  const stop = new AbortController();
  const connection = new FakeConnection();
  const parts = {
    own: new Value(own("10.192.1.0/24")),
    pull: new Value<PullState>({
      mesh: { peers: [] },
      applied: true,
      compared: true,
      holds: true,
      heardOut: false,
      stream: 1,
      curators: [],
    }),
    connection: new Value<CuratorConnection | undefined>(undefined),
    mayTell: new Value(true),
    problems: new ProblemLog(silentLogger, clock),
    log: silentLogger,
    clock,
  };
  const push = new Push({ self, reportStatus }, parts);
  const running = push.run(stop.signal);
  return {
    ...parts,
    push,
    curator: connection,
    connect: () => parts.connection.set(connection),
    kinds: () => parts.problems.current().map(({ kind }) => kind),
    async end() {
      stop.abort();
      await running;
    },
  };
}

const until = (look: () => boolean): Promise<unknown> => waitFor(look, String(look));

const wanted = "192.0.2.1/32 10.192.1.0/24";

/** As Metropolis' Curator, which knows this node by that address. */
const asMetropolis =
  (externalAddress = "192.0.2.1") =>
  (prefixes: readonly string[]): string | undefined =>
    metropolisRefusal({ key: publicKey, prefixes, externalAddress })?.message;

describe("Push", () => {
  test("announces as soon as there is a Curator, and once", async () => {
    const run = start();
    expect(run.curator.tries).toBe(0);
    run.connect();
    await until(() => run.curator.announced.length === 1);
    run.pull.set({ ...run.pull.get(), heardOut: true, selfNode: seen("10.192.1.0/24", "192.0.2.1/32") });
    await run.clock.advance(3_600_000);
    expect(run.curator.announced).toEqual([wanted]);
    expect(
      run.push.state
        .get()
        .announced?.prefixes.map((each) => each.text)
        .join(" "),
    ).toBe(wanted);
    await run.end();
  });

  test("announces nothing before the host has been compared once: nobody could knock at it", async () => {
    const run = start();
    run.pull.set({ ...run.pull.get(), compared: false });
    run.connect();
    await run.clock.advance(60_000);
    expect(run.curator.tries).toBe(0);
    run.pull.set({ ...run.pull.get(), compared: true });
    await until(() => run.curator.announced.length === 1);
    await run.end();
  });

  test("tells nothing before it may, and then at once", async () => {
    const run = start("on");
    run.mayTell.set(false);
    run.pull.set({ ...run.pull.get(), heardOut: true });
    run.connect();
    await run.clock.advance(60_000);
    expect([run.curator.tries, run.curator.reports]).toEqual([0, []]);
    run.mayTell.set(true);
    await until(() => run.curator.announced.length === 1);
    expect(run.curator.reports.length).toBe(1);
    await run.end();
  });

  test("tries a refused announcement again, at most every 60 s, and reports it meanwhile", async () => {
    const run = start();
    run.clock.nextRandom = 0.999;
    run.curator.answers = Array.from({ length: 12 }, () => 13);
    run.connect();
    for (let turns = 0; turns < 400 && run.curator.announced.length === 0; turns++) {
      if (run.curator.tries > 0) expect(run.kinds()).toEqual(["announce-refused"]);
      await run.clock.advance(1000);
    }
    await until(() => run.curator.announced.length === 1);
    expect(run.curator.announced).toEqual([wanted]);
    expect(run.curator.tries).toBe(13);
    await until(() => run.kinds().length === 0);
    await run.end();
  });

  test.each(["on", "off"] as const)(
    "of a status that is missing with --report-status %s it says who is to report it",
    async (setting) => {
      const run = start(setting);
      run.pull.set({ ...run.pull.get(), heardOut: true });
      run.curator.answers = Array.from({ length: 9 }, () => 9);
      run.connect();
      await until(() => run.kinds().length > 0);
      const hint =
        "; hint: With --report-status off somebody else must report this node's status: look whether that runs";
      const [problem] = run.problems.current();
      expect([problem?.kind, problem?.message.endsWith(hint)]).toEqual([
        "announce-refused",
        setting === "off",
      ]);
      await run.end();
    },
  );

  test.each([0, 0.999])("tries again also when the jitter is %p", async (random) => {
    const run = start();
    run.clock.nextRandom = random;
    run.curator.answers = [14, 14, 14];
    run.connect();
    await run.clock.advance(10_000);
    await until(() => run.curator.announced.length === 1);
    expect(run.curator.announced).toEqual([wanted]);
    await run.end();
  });

  test("ends the report of a second machine when it has been quiet for long", async () => {
    const run = start();
    run.connect();
    await until(() => run.curator.announced.length === 1);
    for (let round = 0; round < 6; round++) {
      run.pull.set({ ...run.pull.get(), heardOut: true, selfNode: seen(`10.192.${round + 10}.0/24`) });
      await run.clock.advance(2000);
    }
    expect(run.kinds()).toEqual(["announce-contested"]);
    run.pull.set({ ...run.pull.get(), selfNode: seen("192.0.2.1/32", "10.192.1.0/24") });
    for (let minutes = 0; minutes < 40; minutes++) {
      run.pull.set({ ...run.pull.get() });
      await run.clock.advance(60_000);
    }
    expect(run.kinds()).toEqual([]);
    await run.end();
  });

  test("announces a claim that changed while the old one was refused at once, not one backoff later", async () => {
    const run = start();
    run.clock.nextRandom = 0.999;
    const gate = Promise.withResolvers<void>();
    run.curator.gate = gate.promise;
    run.curator.answers = [14];
    run.connect();
    await until(() => run.curator.tries === 1);
    run.own.set(own("10.192.7.0/24"));
    await run.clock.advance(0);
    gate.resolve();
    await until(() => run.curator.announced.length === 1);
    expect(run.curator.announced).toEqual(["192.0.2.1/32 10.192.7.0/24"]);
    await run.end();
  });

  test("does not wait for a connection that was given up, and says nothing of it", async () => {
    const run = start();
    run.curator.gate = new Promise(() => {});
    run.connect();
    await until(() => run.curator.tries === 1);
    run.connection.set(undefined);
    await run.clock.advance(0);
    expect(run.kinds()).toEqual([]);
    const next = new FakeConnection();
    run.connection.set(next);
    await until(() => next.announced.length === 1);
    expect([next.announced, run.kinds()]).toEqual([[wanted], []]);
    await run.end();
  });

  test("announces what is newest when several changes came while the Curator was away", async () => {
    const run = start();
    run.own.set(own("10.192.2.0/24"));
    run.own.set(own("10.192.3.0/24"));
    run.connect();
    await until(() => run.curator.announced.length === 1);
    expect(run.curator.announced).toEqual(["192.0.2.1/32 10.192.3.0/24"]);
    await run.end();
  });

  test("announces again when the picture of a new stream lacks this node, and not twice for one sight", async () => {
    const run = start();
    run.connect();
    await until(() => run.curator.announced.length === 1);
    await run.clock.advance(1000);
    run.pull.set({ ...run.pull.get(), stream: 2, heardOut: true });
    await until(() => run.curator.announced.length === 2);
    run.pull.set({ ...run.pull.get() });
    await run.clock.advance(60_000);
    expect(run.curator.announced).toEqual([wanted, wanted]);
    expect(run.kinds()).toEqual([]);
    await run.end();
  });

  test("waits for events that were on their way when the announcement was accepted", async () => {
    const run = start();
    run.connect();
    await until(() => run.curator.announced.length === 1);
    run.pull.set({ ...run.pull.get(), heardOut: true, selfNode: seen() });
    await run.clock.advance(900);
    run.pull.set({ ...run.pull.get(), selfNode: seen("192.0.2.1/32", "10.192.1.0/24") });
    await run.clock.advance(60_000);
    expect(run.curator.announced).toEqual([wanted]);
    await run.end();
  });

  test("gives up the quick exchange with a second machine of the same identity after three reversals", async () => {
    const run = start();
    run.connect();
    await until(() => run.curator.announced.length === 1);
    for (let round = 0; round < 6; round++) {
      run.pull.set({ ...run.pull.get(), heardOut: true, selfNode: seen(`10.192.${round + 10}.0/24`) });
      await run.clock.advance(1000);
    }
    expect(run.curator.announced).toHaveLength(4);
    expect(run.kinds()).toEqual(["announce-contested"]);
    await run.clock.advance(11 * 60_000);
    await until(() => run.curator.announced.length === 5);
    expect(run.kinds()).toEqual(["announce-contested"]);
    await run.end();
  });

  test("takes a Curator that lost the announcement and refuses the next ones for no second machine", async () => {
    const run = start();
    run.connect();
    await until(() => run.curator.announced.length === 1);
    await run.clock.advance(1000);
    run.curator.answers = [14, 14, 14, 14, 14, 14];
    run.pull.set({ ...run.pull.get(), stream: 2, heardOut: true, selfNode: seen() });
    for (let turns = 0; turns < 60; turns++) await run.clock.advance(1000);
    await until(() => run.curator.announced.length === 2);
    expect(run.kinds()).toEqual([]);
    await run.end();
  });

  test("says that its announcement is contested at the third reversal, and stops saying so when that is long over", async () => {
    const run = start();
    run.connect();
    await until(() => run.curator.announced.length === 1);
    for (const count of [2, 3, 4]) {
      expect(run.kinds()).toEqual([]);
      run.pull.set({ ...run.pull.get(), heardOut: true, selfNode: seen(`10.192.${count + 10}.0/24`) });
      await run.clock.advance(1000);
      await until(() => run.curator.announced.length === count);
    }
    expect(run.kinds()).toEqual(["announce-contested"]);
    // The other machine has stopped: from here on the picture shows this one.
    run.pull.set({ ...run.pull.get(), selfNode: seen("192.0.2.1/32", "10.192.1.0/24") });
    for (let minute = 0; minute < 14; minute++) {
      await run.clock.advance(60_000);
      run.pull.set({ ...run.pull.get() });
    }
    expect(run.kinds()).toEqual(["announce-contested"]);
    await run.clock.advance(120_000);
    run.pull.set({ ...run.pull.get() });
    await until(() => run.kinds().length === 0);
    expect(run.curator.announced).toHaveLength(4);
    await run.end();
  });

  test("says in plain words that this node was removed, tries rarely, also at another Curator, and comes back", async () => {
    const run = start();
    run.clock.nextRandom = 0.999;
    run.curator.answers = Array.from({ length: 8 }, () => 5);
    run.connect();
    await until(() => run.curator.tries === 1);
    await until(() => run.kinds().length === 1);
    expect(run.problems.current().map(({ kind, nodeId, message }) => [kind, nodeId, message])).toEqual([
      [
        "announce-refused",
        self,
        'This node was removed from the cluster: the Curator knows no node "a" (NOT_FOUND). The mesh stays as it was; ' +
          "`clusternet node allow a` on the Curator's machine, with --data-dir where the Curator has one, lets this node in again",
      ],
    ]);
    // A connection that is made anew is no reason to ask at once.
    for (let again = 0; again < 20; again++) {
      run.connect();
      await run.clock.advance(400);
    }
    expect(run.curator.tries).toBe(1);
    await run.clock.advance(600_000);
    await until(() => run.curator.announced.length === 1);
    expect(run.curator.tries).toBe(9);
    expect(run.kinds()).toEqual([]);
    await run.end();
  });

  test("reports the status itself when the Curator has missed one for ten seconds, and is no problem until then", async () => {
    const run = start("auto");
    run.clock.nextRandom = 0.999;
    run.pull.set({ ...run.pull.get(), heardOut: true });
    run.curator.answers = Array.from({ length: 8 }, () => 9);
    run.connect();
    await until(() => run.curator.tries === 1);
    await run.clock.advance(9900);
    expect([run.curator.reports, run.kinds(), run.push.statusRefusal]).toEqual([
      [],
      [],
      "Cannot announce: code 9",
    ]);
    await run.clock.advance(200);
    expect(run.curator.reports.map(({ externalAddress }) => externalAddress.text)).toEqual(["192.0.2.1"]);
    // From here on it has been done, and does not help.
    expect([run.kinds(), run.push.statusRefusal]).toEqual([["announce-refused"], undefined]);
    await run.end();
  });

  test("reports at start and at each change when told to, and never before it knows what it would replace", async () => {
    const run = start("on");
    run.connect();
    await run.clock.advance(60_000);
    expect([run.curator.reports.length, run.curator.tries]).toEqual([0, 0]);
    run.pull.set({ ...run.pull.get(), heardOut: true, selfStatus: new Uint8Array([1, 2]) });
    await until(() => run.curator.announced.length === 1);
    run.own.set(own("10.192.1.0/24", "192.0.2.7"));
    await until(() => run.curator.reports.length === 2);
    expect(run.curator.reports.map((each) => [each.externalAddress.text, each.lastStatus])).toEqual([
      ["192.0.2.1", new Uint8Array([1, 2])],
      ["192.0.2.7", new Uint8Array([1, 2])],
    ]);
    await run.end();
  });

  test("reports again when the picture shows another machine's address, and says that it is contested", async () => {
    const run = start("on");
    run.pull.set({ ...run.pull.get(), heardOut: true });
    run.connect();
    await until(() => run.curator.announced.length === 1);
    for (let round = 0; round < 6; round++) {
      await run.clock.advance(2000);
      const stolen = { ...seen("192.0.2.1/32", "10.192.1.0/24"), externalAddress: `192.0.2.${round + 100}` };
      run.pull.set({ ...run.pull.get(), selfNode: stolen });
      await run.clock.advance(2000);
    }
    expect(run.curator.reports.map(({ externalAddress }) => externalAddress.text)).toEqual(
      Array.from({ length: 4 }, () => "192.0.2.1"),
    );
    expect(run.kinds()).toEqual(["announce-contested"]);
    await run.end();
  });

  test("never reports a status when told not to", async () => {
    const run = start("off");
    run.pull.set({ ...run.pull.get(), heardOut: true });
    run.curator.answers = Array.from({ length: 30 }, () => 9);
    run.connect();
    await until(() => run.curator.tries === 1);
    expect([run.kinds(), run.push.statusRefusal]).toEqual([["announce-refused"], undefined]);
    for (let turns = 0; turns < 120; turns++) await run.clock.advance(1000);
    expect(run.curator.tries).toBeGreaterThan(5);
    expect(run.curator.tries).toBeLessThan(30);
    expect(run.curator.reports).toEqual([]);
    await run.end();
  });
});

const reports = (run: ReturnType<typeof start>): string[] =>
  run.problems.current().map(({ message }) => message);

describe("Push, at a Curator that refuses all for one prefix,", () => {
  const dual = "10.192.1.0/24 fd10:c1:0:1::/64";
  const full = "192.0.2.1/32 10.192.1.0/24 fd10:c1:0:1::/64";
  const most = "192.0.2.1/32 10.192.1.0/24";
  const refusal =
    "Cannot announce prefix fd10:c1:0:1::/64: the Curator refuses it, the others are announced: prefix outside of the cluster network, and not the external address";

  const began = (shown?: Node) => {
    const run = start();
    run.clock.nextRandom = 0.999;
    run.curator.judge = asMetropolis();
    run.own.set(own(dual));
    run.pull.set({ ...run.pull.get(), heardOut: true, ...(shown === undefined ? {} : { selfNode: shown }) });
    return run;
  };

  test("announces the others at once, and reports the one", async () => {
    const run = began();
    run.connect();
    await until(() => run.curator.announced.length === 1);
    await run.clock.advance(0);
    expect(run.curator.log).toEqual([`- ${full}`, `+ ${most}`]);
    expect(run.problems.current()).toMatchObject([
      { kind: "announce-refused", nodeId: self, message: refusal },
    ]);
    expect(run.push.isSettled).toBe(true);
    expect(run.push.state.get().announced?.prefixes.map(({ text }) => text)).toEqual(most.split(" "));
    await run.end();
  });

  test("takes the picture that shows the others for what it wants", async () => {
    const run = began();
    run.connect();
    await until(() => run.curator.announced.length === 1);
    await run.clock.advance(5_000);
    run.pull.set({ ...run.pull.get(), selfNode: seen("192.0.2.1/32", "10.192.1.0/24") });
    await run.clock.advance(20_000);
    run.pull.set({ ...run.pull.get(), selfNode: seen("192.0.2.1/32") });
    await run.clock.advance(1_000);
    expect(run.curator.log.slice(2)).toEqual([`- ${full}`, `+ ${most}`]);
    await run.end();
  });

  test("tries the one again now and then, ever more rarely, and never without what is held", async () => {
    const run = began();
    run.clock.nextRandom = 1 - 1e-9;
    run.connect();
    await until(() => run.curator.announced.length === 1);
    const since = run.problems.current()[0]?.since;
    const tries: number[] = [];
    for (let second = 1; second <= 3_600; second++) {
      const before = run.curator.log.filter((line) => line === `- ${full}`).length;
      await run.clock.advance(1_000);
      if (run.curator.log.filter((line) => line === `- ${full}`).length > before) tries.push(second);
    }
    const pauses = tries.map((second, at) => second - (tries[at - 1] ?? 0));
    expect(pauses).toEqual([60, 90, 150, 270, 510, 600, 600, 600, 600].slice(0, pauses.length));
    expect(pauses.length).toBeGreaterThanOrEqual(8);
    expect(new Set(run.curator.log)).toEqual(new Set([`- ${full}`, `+ ${most}`]));
    // It lasted all the time: nothing was reported twice.
    expect(run.problems.current()).toMatchObject([{ message: refusal, since }]);
    run.curator.judge = () => undefined;
    await run.clock.advance(700_000);
    await until(() => run.curator.announced.at(-1) === full);
    await run.clock.advance(0);
    expect(reports(run)).toEqual([]);
    await run.end();
  });

  test("makes eight tries for a change at most, and three each time that it tries again", async () => {
    const run = began();
    const many = Array.from({ length: 12 }, (_, at) => `fd10:c1:0:${at + 1}::/64`);
    run.own.set(own(`10.192.1.0/24 ${many.join(" ")}`));
    run.connect();
    const bursts: number[] = [];
    for (let second = 0, before = 0; second < 1_200; second++) {
      await run.clock.advance(1_000);
      const { tries } = run.curator;
      if (tries > before) bursts.push(tries - before);
      before = tries;
    }
    expect(bursts[0]).toBe(8);
    expect(bursts.length).toBeGreaterThan(3);
    for (const burst of bursts.slice(1)) expect(burst).toBeLessThanOrEqual(3);
    expect(new Set(run.curator.announced)).toEqual(new Set([most]));
    expect(reports(run)).toHaveLength(12);
    await run.end();
  });

  test("tries the one again at another Curator, and when something else changes", async () => {
    const run = began();
    run.connect();
    await until(() => run.curator.announced.length === 1);
    await run.clock.advance(1_000);
    const second = new FakeConnection();
    second.judge = asMetropolis();
    run.connection.set(second);
    await until(() => second.log.length === 2);
    expect(second.log).toEqual([`- ${full}`, `+ ${most}`]);
    second.judge = () => undefined;
    run.own.set(own(`${dual} 10.192.2.0/24`));
    await until(() => second.log.length === 3);
    await run.clock.advance(0);
    expect(second.log.at(-1)).toBe(`+ ${full} 10.192.2.0/24`);
    expect(reports(run)).toEqual([]);
    await run.end();
  });

  test.each([
    { name: "this program was started", key: {} },
    {
      name: "this node had another key",
      key: { publicKey: privateKeyFromBytes(new Uint8Array(32).fill(7)).publicKey },
    },
  ])("never takes away what the Curator held before $name", async ({ key }) => {
    // The picture comes after the first refusal.
    const run = began();
    run.pull.set({ ...run.pull.get(), heardOut: false });
    run.own.set(own("10.192.1.0/24 10.192.2.0/24 fd10:c1:0:1::/64 fd10:c1:0:2::/64"));
    run.curator.judge = (prefixes) => (prefixes.includes("fd10:c1:0:2::/64") ? "no" : undefined);
    run.connect();
    await until(() => run.curator.log.length === 1);
    await run.clock.advance(9_000);
    expect([run.curator.log.length, run.kinds()]).toEqual([1, []]);
    run.pull.set({ ...run.pull.get(), selfNode: { ...seen("10.192.1.0/24", "FD10:C1:0:1::/64"), ...key } });
    await until(() => run.curator.announced.at(-1)?.includes("fd10") === true);
    await run.clock.advance(0);
    for (const line of run.curator.log) {
      expect(line).toContain("10.192.1.0/24");
      expect(line).toContain("fd10:c1:0:1::/64");
    }
    expect(run.curator.announced.at(-1)).toBe("192.0.2.1/32 10.192.1.0/24 10.192.2.0/24 fd10:c1:0:1::/64");
    await run.end();
  });

  test("reports the refusal as one of everything when no picture comes", async () => {
    const run = began();
    run.pull.set({ ...run.pull.get(), heardOut: false });
    run.connect();
    await until(() => run.curator.log.length === 1);
    for (let second = 0; second < 120; second++) await run.clock.advance(1_000);
    expect(new Set(run.curator.log)).toEqual(new Set([`- ${full}`]));
    expect(run.curator.log.length).toBeGreaterThan(2);
    expect(run.curator.log.length).toBeLessThan(12);
    expect(reports(run)).toEqual([
      "Cannot announce: prefix outside of the cluster network, and not the external address",
    ]);
    await run.end();
  });

  test("announces its new address as soon as the Curator knows this node by it", async () => {
    const run = began(seen("192.0.2.1/32", "10.192.1.0/24"));
    run.connect();
    await until(() => run.curator.announced.length === 1);
    await run.clock.advance(1_000);
    run.own.set(own("10.192.1.0/24", "192.0.2.7"));
    await until(() => run.curator.announced.at(-1) === "10.192.1.0/24");
    await run.clock.advance(1_000);
    expect(reports(run)).toMatchObject([expect.stringMatching(/^Cannot announce prefix 192.0.2.7\/32: /)]);
    run.curator.judge = asMetropolis("192.0.2.7");
    run.pull.set({
      ...run.pull.get(),
      selfNode: { ...seen("10.192.1.0/24"), externalAddress: "192.0.2.7" },
    });
    await until(() => run.curator.announced.at(-1) === "192.0.2.7/32 10.192.1.0/24");
    await run.clock.advance(0);
    expect(reports(run)).toEqual([]);
    await run.end();
  });

  test("stops a search when something else is wanted, and starts anew with what the Curator holds by then", async () => {
    const run = began(seen());
    run.connect();
    const gate = Promise.withResolvers<void>();
    await until(() => run.curator.announced.length === 1);
    run.curator.gate = gate.promise;
    run.own.set(own(`${dual} 10.192.3.0/24`));
    await until(() => run.curator.tries === 3);
    run.own.set(own("10.192.4.0/24 fd10:c1:0:4::/64"));
    await run.clock.advance(0);
    gate.resolve();
    await until(() => run.curator.announced.at(-1) === "192.0.2.1/32 10.192.4.0/24");
    expect(run.curator.log.slice(2)).toEqual([
      `- ${full} 10.192.3.0/24`,
      "- 192.0.2.1/32 10.192.4.0/24 fd10:c1:0:4::/64",
      "+ 192.0.2.1/32 10.192.4.0/24",
    ]);
    await run.end();
  });
});
