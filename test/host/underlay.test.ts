/** Reading the underlay: what is asked of `ip` and of the resolver, and what is left out when they fail. */
import { describe, expect, test } from "bun:test";
import { CommandError } from "../../src/errors.ts";
import type { RunCommand } from "../../src/host/command.ts";
import { readUnderlay } from "../../src/host/underlay.ts";
import { failure } from "./temporary.ts";

const devices =
  '[{"ifname":"eth0","flags":[],"mtu":1500,"addr_info":[{"local":"192.0.2.1","prefixlen":24}]}]';
const toCurator = (dst: string): string => `[{"dst":"${dst}","dev":"eth0","prefsrc":"192.0.2.1","flags":[]}]`;
const defaultRoute = '[{"dst":"default","gateway":"192.0.2.254","dev":"eth0","flags":[]}]';

/** An `ip` that knows these commands and fails at any other, as when a network is unreachable. */
function fakeIp(answers: Readonly<Record<string, string>>): { run: RunCommand; asked: string[] } {
  const asked: string[] = [];
  const run: RunCommand = async (argv) => {
    const command = argv.join(" ");
    asked.push(command);
    const answer = answers[command];
    if (answer === undefined)
      throw new CommandError(`Cannot run "${command}": exit code 2`, { argv, exitCode: 2 });
    return answer;
  };
  return { run, asked };
}

const always = {
  "ip -N -j -d address show": devices,
  "ip -N -j -d route show default": defaultRoute,
  "ip -N -j -d -6 route show default": "",
};

/** Names of the test; any other is unknown to the resolver. */
async function lookup(hostName: string): Promise<readonly string[]> {
  if (hostName === "curator.invalid") return ["2001:db8::9", "192.0.2.9"];
  if (hostName === "silent.invalid") return await new Promise(() => {});
  throw Object.assign(new Error("getaddrinfo ENOTFOUND"), { code: "ENOTFOUND" });
}

describe("readUnderlay()", () => {
  test.each([
    { name: "an address", curatorHosts: ["192.0.2.9"], routes: ["192.0.2.9"], found: true },
    {
      name: "a name, by the first of its addresses that has a route",
      curatorHosts: ["curator.invalid"],
      routes: ["192.0.2.9"],
      found: true,
    },
    {
      name: "the first of several that has a route",
      curatorHosts: ["192.0.2.8", "192.0.2.9"],
      routes: ["192.0.2.9"],
      found: true,
    },
    {
      name: "the next one when a name is unknown",
      curatorHosts: ["unknown.invalid", "192.0.2.9"],
      routes: ["192.0.2.9"],
      found: true,
    },
    {
      name: "the next one when the resolver is silent",
      curatorHosts: ["silent.invalid", "192.0.2.9"],
      routes: ["192.0.2.9"],
      found: true,
    },
    {
      name: "none when no Curator has a route",
      curatorHosts: ["192.0.2.8", "curator.invalid"],
      routes: [],
      found: false,
    },
    { name: "none when there is no Curator", curatorHosts: [], routes: [], found: false },
  ])("takes the route to $name", async ({ curatorHosts, routes, found }) => {
    const answers = Object.fromEntries(routes.map((dst) => [`ip -N -j -d route get ${dst}`, toCurator(dst)]));
    const { run } = fakeIp({ ...always, ...answers });
    const underlay = await readUnderlay({ run, curatorHosts, lookup, lookupTimeoutMs: 20 });
    expect({
      devices: underlay.devices.map(({ name }) => name),
      curator: underlay.curatorRoute?.source?.text,
      defaults: underlay.defaultRoutes.map(({ family, gateway }) => `${family} ${gateway?.text}`),
    }).toEqual({ devices: ["eth0"], curator: found ? "192.0.2.1" : undefined, defaults: ["4 192.0.2.254"] });
  });

  test("asks nothing of a resolver that a Curator's address answers, and gives a name to no command", async () => {
    const { run, asked } = fakeIp({ ...always, "ip -N -j -d route get 192.0.2.9": toCurator("192.0.2.9") });
    const names: string[] = [];
    const curatorHosts = ["192.0.2.9", "curator.invalid"];
    await readUnderlay({ run, curatorHosts, lookup: async (name) => (names.push(name), []) });
    expect({ names, asked }).toEqual({
      names: [],
      asked: ["ip -N -j -d address show", "ip -N -j -d route get 192.0.2.9", ...Object.keys(always).slice(1)],
    });
  });

  test("goes on without default routes that cannot be shown", async () => {
    const { run } = fakeIp({ "ip -N -j -d address show": devices });
    expect((await readUnderlay({ run, curatorHosts: [] })).defaultRoutes).toEqual([]);
  });

  test("throws when ip cannot show the devices", async () => {
    const { run } = fakeIp({});
    expect((await failure(() => readUnderlay({ run, curatorHosts: [] }))).message).toBe(
      'Cannot run "ip -N -j -d address show": exit code 2',
    );
  });

  test("reads a real network namespace", async () => {
    const shell = `set -e
      ip link set lo up
      ip link add v0 mtu 1400 type veth peer name v1
      ip address add 192.0.2.1/24 dev v0
      ip link set v0 up
      ip link set v1 up
      ip route add default via 192.0.2.254
      for what in "address show" "route get 192.0.2.9" "route get 127.0.0.1"; do ip -N -j -d $what; echo ,,; done
      ip -N -j -d route show default; echo ,,; ip -N -j -d -6 route show default`;
    const child = Bun.spawn(["unshare", "-n", "sh", "-c", shell], { stdout: "pipe", stderr: "inherit" });
    const [shown = "", curator = "", local = "", ipv4 = "", ipv6 = ""] = (
      await new Response(child.stdout).text()
    ).split(",,");
    expect(await child.exited).toBe(0);
    const { run } = fakeIp({
      "ip -N -j -d address show": shown,
      "ip -N -j -d route get 192.0.2.9": curator,
      "ip -N -j -d route get 127.0.0.1": local,
      "ip -N -j -d route show default": ipv4,
      "ip -N -j -d -6 route show default": ipv6,
    });
    const far = await readUnderlay({ run, curatorHosts: ["192.0.2.9"] });
    const near = await readUnderlay({ run, curatorHosts: ["127.0.0.1"] });
    expect({
      far: [far.curatorRoute?.device, far.curatorRoute?.source?.text],
      near: [near.curatorRoute?.device, near.curatorRoute?.source?.text],
      defaults: far.defaultRoutes.map(({ device, gateway }) => [device, gateway?.text]),
      mtu: far.devices.find(({ name }) => name === "v0")?.mtu,
      loopback: far.devices.filter(({ loopback }) => loopback).map(({ name }) => name),
    }).toEqual({
      far: ["v0", "192.0.2.1"],
      near: ["lo", "127.0.0.1"],
      defaults: [["v0", "192.0.2.254"]],
      mtu: 1400,
      loopback: ["lo"],
    });
  });
});
