/** The underlay followed: which address is announced, and which connection is dead, as addresses come and go. */
import { expect, test } from "bun:test";
import { Value } from "../src/async.ts";
import { parsePrefix } from "../src/core/prefix.ts";
import type { CuratorState } from "../src/curator/follower.ts";
import type { RunCommand } from "../src/host/command.ts";
import { silentLogger } from "../src/log.ts";
import { UnderlayFollower } from "../src/underlay.ts";
import { FakeClock } from "./fakes/clock.ts";
import { waitFor } from "./lab/wait.ts";

/** A host with these addresses on eth0, and one as source towards the Curator. */
function follower({ resyncMs = 30_000 } = {}) {
  const host = {
    addresses: ["192.0.2.1"],
    source: "192.0.2.1" as string | undefined,
    device: "eth0",
    reads: 0,
    /** Readings from now on that fail. */
    refuses: 0,
    defaultsRead: 0,
  };
  const run: RunCommand = async (argv) => {
    const command = argv.join(" ");
    if (command === "ip -N -j -d address show") {
      host.reads++;
      if (host.refuses-- > 0) throw new Error("ip was killed");
      const addr_info = host.addresses.map((local) => ({ local, prefixlen: 24 }));
      return JSON.stringify([{ ifname: "eth0", mtu: 1500, flags: [], addr_info }]);
    }
    if (command.endsWith("route show default")) host.defaultsRead++;
    if (!command.startsWith("ip -N -j -d route get ") || host.source === undefined) return "";
    return JSON.stringify([{ dst: "192.0.2.9", dev: host.device, prefsrc: host.source }]);
  };
  const reconnected: string[] = [];
  const clock = new FakeClock();
  const state = new Value<CuratorState>({ state: "connected", address: "192.0.2.9:7835", fullPicture: true });
  const underlay = new UnderlayFollower(
    {
      clusterNets: [parsePrefix("10.192.0.0/11")],
      interfaceName: "clusternet",
      mtu: "auto",
      announcesAddress: true,
      curatorAddresses: ["192.0.2.9:7835"],
      resyncMs,
    },
    {
      run,
      curator: { state, reconnect: (reason) => void reconnected.push(reason) },
      clock,
      log: silentLogger,
    },
  );
  /** Reads the host as it is then: the address, and how often the connection was made anew so far. */
  const look = async (
    addresses: readonly string[],
    source: string | undefined,
  ): Promise<readonly [string | undefined, number]> => {
    Object.assign(host, { addresses, source });
    await underlay.read();
    return [underlay.network.get()?.externalAddress, reconnected.length];
  };
  return { underlay, look, state, host, clock };
}

test("one of two good addresses stays as long as it is there, whichever the route prefers", async () => {
  const { look } = follower();
  const both = ["192.0.2.1", "192.0.2.2"];
  expect(await look(["192.0.2.1"], "192.0.2.1")).toEqual(["192.0.2.1", 0]);
  for (let turn = 0; turn < 4; turn++) {
    expect(await look(both, both[turn % 2])).toEqual(["192.0.2.1", 0]);
    expect(await look(both.toReversed(), undefined)).toEqual(["192.0.2.1", 0]);
  }
  expect(await look(["192.0.2.2"], "192.0.2.2")).toEqual(["192.0.2.2", 1]);
  expect(await look(both, "192.0.2.1")).toEqual(["192.0.2.2", 1]);
});

test("a connection is dead when an address that it may have come from has gone, and only then", async () => {
  const { look } = follower();
  expect(await look(["192.0.2.1", "192.0.2.2"], "192.0.2.1")).toEqual(["192.0.2.1", 0]);
  // Not this one's.
  expect(await look(["192.0.2.1"], "192.0.2.1")).toEqual(["192.0.2.1", 0]);
  // Nothing is left: it is said once.
  expect(await look([], undefined)).toEqual([undefined, 1]);
  expect(await look([], undefined)).toEqual([undefined, 1]);
  expect(await look(["192.0.2.3"], "192.0.2.3")).toEqual(["192.0.2.3", 1]);
});

test("an attempt to connect begins anew when there is a way to the Curator again", async () => {
  const { look, state } = follower();
  state.set({ state: "connecting", fullPicture: false });
  expect(await look([], undefined)).toEqual([undefined, 0]);
  expect(await look(["192.0.2.1"], "192.0.2.1")).toEqual(["192.0.2.1", 1]);
  expect(await look(["192.0.2.1"], "192.0.2.1")).toEqual(["192.0.2.1", 1]);
  // Another Curator is tried, to which another address leads: that attempt is not in vain.
  expect(await look(["192.0.2.1", "192.0.2.2"], "192.0.2.2")).toEqual(["192.0.2.1", 1]);
});

test("the devices that the routes lead through are those whose changes matter", async () => {
  const { underlay, look } = follower();
  await look(["192.0.2.1"], "192.0.2.1");
  expect(underlay.devices).toEqual(["eth0"]);
});

test("the default routes are read only while the route to the Curator does not decide alone", async () => {
  const { look, host } = follower();
  await look(["192.0.2.1"], "192.0.2.1");
  expect(host.defaultsRead).toBe(0);
  await look(["192.0.2.1"], undefined);
  expect(host.defaultsRead).toBe(2);
});

test("run() reads once in every resync and at each hint, and turns more often than that", async () => {
  const { underlay, host, clock } = follower();
  const stop = new AbortController();
  const running = underlay.run(stop.signal);
  await waitFor(() => host.reads === 1, "the Curator's address looked at");
  const turns: number[] = [];
  for (let second = 1; second <= 65; second++) {
    if (second === 41) underlay.hint();
    await clock.advance(1_000);
    if (second % 10 === 0) turns.push(underlay.lastTurnMs / 1_000);
    const want = second < 30 ? 1 : second <= 40 ? 2 : 3;
    await waitFor(() => host.reads >= want, `${want} readings after ${second} s`);
    expect(host.reads).toBe(want);
  }
  expect(turns).toEqual([0, 20, 30, 30, 40, 60]);
  stop.abort();
  await running;
});

test("run() reads again soon after a reading that failed, less and less often, and rests after one that did not", async () => {
  const { underlay, host, clock } = follower({ resyncMs: 3_600_000 });
  clock.nextRandom = 0.999;
  host.refuses = 9;
  await underlay.read();
  const stop = new AbortController();
  const running = underlay.run(stop.signal);
  await waitFor(() => host.reads === 2, "the Curator's address looked at");
  const at: number[] = [];
  for (let second = 1; second <= 150; second++) {
    const before = host.reads;
    await clock.advance(1_000);
    if (host.reads > before) at.push(second);
  }
  expect(host.refuses).toBeLessThan(0);
  expect(underlay.network.get()).toEqual({ externalAddress: "192.0.2.1" });
  expect(at).toEqual([1, 2, 4, 8, 16, 31, 46, 61, 121]);
  stop.abort();
  await running;
});
