/**
 * The host plan as tables: what is seen, and the commands that make it as wanted, in their order.
 */
import { describe, expect, test } from "bun:test";
import { array, assert, boolean, integer, option, property, record, subarray, uniqueArray } from "fast-check";
import { renderStep } from "../../src/core/host-commands.ts";
import { foldStep } from "../../src/core/host-fold.ts";
import {
  planDown,
  planHost,
  quietLimitMs,
  type Remembered,
  type SeenHost,
  type SeenPeer,
  type SeenRoute,
  type Step,
  type WantedHost,
} from "../../src/core/host-plan.ts";
import { announcedEndpoint, type SeenInterface } from "../../src/core/host-state.ts";
import type { PublicKey } from "../../src/core/key.ts";
import type { Peer } from "../../src/core/mesh.ts";
import { parseAddress, parsePrefix } from "../../src/core/prefix.ts";
import { peerOf, publicKeyOf, wantedHost } from "../fakes/wanted.ts";

const net4 = parsePrefix("10.192.0.0/11");
const net6 = parsePrefix("fd00::/16");

function remembered(change: Partial<Remembered> = {}): Remembered {
  return {
    addedLoopback: new Set(["10.192.1.1", "fd00:1::1"]),
    ourKeys: new Set(),
    formerClusterNets: [],
    formerPeers: new Set(),
    endpoints: {
      starting: false,
      announced: () => undefined,
      tried: new Map(),
      quietMs: new Map(),
      nowSeconds: 1_000_000,
    },
    ...change,
  };
}

const emptyHost: SeenHost = {
  routes: [],
  loopback: ["127.0.0.1", "::1"],
  addresses: new Set(["127.0.0.1", "::1"]),
};

/** The host as it is once everything wanted was done. */
function doneHost(wanted: WantedHost): SeenHost {
  return planHost(wanted, emptyHost, remembered()).after;
}

function withLink(seen: SeenHost, change: Partial<SeenInterface>): SeenHost {
  if (seen.interface === undefined) throw new Error("no interface");
  return { ...seen, interface: { ...seen.interface, ...change } };
}

function withPeer(seen: SeenHost, number: number, change: Partial<SeenPeer>): SeenHost {
  const key = publicKeyOf(number);
  const before = seen.interface?.peers.get(key);
  if (before === undefined) throw new Error("no peer");
  return withLink(seen, {
    peers: new Map([...(seen.interface?.peers ?? []), [key, { ...before, ...change }]]),
  });
}

function withRoute(seen: SeenHost, network: string, change: Partial<SeenRoute>): SeenHost {
  return {
    ...seen,
    routes: seen.routes.map((route) =>
      route.network.text === network && route.type === "unicast" ? { ...route, ...change } : route,
    ),
  };
}

/** The commands of the plan, with keys by the number they were made of. */
function commands(wanted: WantedHost, seen: SeenHost, memory = remembered()): string[] {
  return planHost(wanted, seen, memory).steps.flatMap((step) => named(renderStep(step)).split("\n"));
}

function named(text: string): string {
  let shown = text;
  for (let number = 1; number < 20; number++) shown = shown.replaceAll(publicKeyOf(number), `<${number}>`);
  return shown;
}

const three = wantedHost({
  peers: [peerOf(2), peerOf(3, { address: "2001:db8::3", prefixes: ["10.192.3.0/24", "fd00:3::/64"] })],
});

describe("planHost() of a host that shows nothing", () => {
  const guards = [
    "ip -4 route add unreachable 10.192.0.0/11 proto 129 metric 4294967295",
    "ip -6 route add unreachable fd00::/16 proto 129 metric 4294967295",
  ];
  const routes = [
    "ip link set dev clusternet up",
    "ip address add 10.192.1.1/32 dev lo",
    "ip address add fd00:1::1/128 dev lo nodad",
    "ip -4 route add 10.192.0.0/11 dev clusternet proto 129 src 10.192.1.1",
    "ip -6 route add fd00::/16 dev clusternet proto 129 src fd00:1::1",
  ];

  test("guards first, then makes the link with group and MTU, sets it up, and routes into it last", () => {
    expect(commands(three, emptyHost)).toEqual([
      ...guards,
      "ip link add dev clusternet group 9 mtu 1420 type wireguard",
      "wg set clusternet private-key private.key",
      "wg set clusternet listen-port 7838",
      "wg set clusternet peer <2> endpoint 192.0.2.2:7838 allowed-ips 10.192.2.0/24 peer <3> endpoint [2001:db8::3]:7838 allowed-ips 10.192.3.0/24,fd00:3::/64",
      ...routes,
    ]);
  });

  test("hands the file to wg whole when it holds this mesh", () => {
    expect(commands({ ...three, configWritten: true }, emptyHost)).toEqual([
      ...guards,
      "ip link add dev clusternet group 9 mtu 1420 type wireguard",
      "wg syncconf clusternet <interface>.conf",
      ...routes,
    ]);
  });

  test("needs no source address when this node has no pod prefix", () => {
    const wanted = wantedHost({ loopbackAddresses: [], clusterNets: [net4] });
    expect(commands(wanted, emptyHost).slice(-2)).toEqual([
      "ip link set dev clusternet up",
      "ip -4 route add 10.192.0.0/11 dev clusternet proto 129",
    ]);
  });
});

const done = doneHost(three);
const keyless: SeenInterface = {
  index: 4,
  name: "clusternet",
  implementation: "kernel",
  group: 0,
  mtu: 1500,
  up: false,
  listenPort: 0,
  fwmark: 0,
  peers: new Map(),
};
const keepalive = { ...three, keepaliveSeconds: 25 };

describe("planHost() of a host that differs", () => {
  const route4 = "ip -4 route add 10.192.0.0/11 dev clusternet proto 129 src 10.192.1.1";
  const route6 = "ip -6 route add fd00::/16 dev clusternet proto 129 src fd00:1::1";
  const { interface: _link, ...withoutLink } = done;

  test.each<{
    name: string;
    seen: SeenHost;
    wanted?: WantedHost;
    memory?: Partial<Remembered>;
    want: string[];
  }>([
    { name: "does nothing when nothing differs", seen: done, want: [] },
    {
      name: "does nothing for a fwmark, more addresses and routes of others",
      seen: {
        ...withLink(done, { fwmark: 7 }),
        loopback: [...done.loopback, "203.0.113.7"],
        routes: [...done.routes, { network: net4, type: "unicast", device: "eth0", protocol: 3, metric: 50 }],
      },
      want: [],
    },
    {
      name: "makes a deleted interface again",
      seen: { ...withoutLink, routes: done.routes.filter(({ type }) => type !== "unicast") },
      want: [
        "ip link add dev clusternet group 9 mtu 1420 type wireguard",
        "wg set clusternet private-key private.key",
        "wg set clusternet listen-port 7838",
        "wg set clusternet peer <2> endpoint 192.0.2.2:7838 allowed-ips 10.192.2.0/24 peer <3> endpoint [2001:db8::3]:7838 allowed-ips 10.192.3.0/24,fd00:3::/64",
        "ip link set dev clusternet up",
        route4,
        route6,
      ],
    },
    {
      name: "names a renamed interface back while it is down, and routes into it again",
      seen: withRoute(
        withRoute(withLink(done, { name: "foo" }), "10.192.0.0/11", { device: "foo" }),
        "fd00::/16",
        { device: "foo" },
      ),
      want: [
        "ip link set dev foo down",
        "ip link set dev foo name clusternet",
        "ip link set dev clusternet up",
        route4,
        route6,
      ],
    },
    {
      name: "sets an interface up that is down, whose routes went along",
      seen: {
        ...withLink(done, { up: false }),
        routes: done.routes.filter(({ type }) => type !== "unicast"),
      },
      want: ["ip link set dev clusternet up", route4, route6],
    },
    {
      name: "sets group and MTU back in one command",
      seen: withLink(done, { group: 0, mtu: 1300 }),
      want: ["ip link set dev clusternet group 9 mtu 1420"],
    },
    {
      name: "brings the IPv6 route back that an MTU below 1280 took",
      seen: {
        ...withLink(done, { mtu: 1000 }),
        routes: done.routes.filter(({ network, type }) => network.family === 4 || type !== "unicast"),
      },
      want: ["ip link set dev clusternet mtu 1420", route6],
    },
    {
      name: "sets a changed port back and does not touch the key",
      seen: withLink(done, { listenPort: 0 }),
      want: ["wg set clusternet listen-port 7838"],
    },
    {
      name: "sets a key of ours that is the old one",
      seen: withLink(done, { publicKey: publicKeyOf(9) }),
      memory: { ourKeys: new Set([publicKeyOf(9)]) },
      want: ["wg set clusternet private-key private.key"],
    },
    {
      name: "puts an edited peer back: allowed IPs, keepalive and preshared key",
      seen: withPeer(done, 2, { allowedIps: ["10.192.2.0/25"], keepaliveSeconds: 3, hasPresharedKey: true }),
      want: [
        "wg set clusternet peer <2> preshared-key /dev/null persistent-keepalive 0 allowed-ips 10.192.2.0/24",
      ],
    },
    {
      name: "leaves allowed IPs in another order alone",
      seen: withPeer(done, 3, { allowedIps: ["fd00:3::/64", "10.192.3.0/24"] }),
      want: [],
    },
    {
      name: "sets the keepalive of every peer when it is wanted",
      seen: done,
      wanted: keepalive,
      want: ["wg set clusternet peer <2> persistent-keepalive 25 peer <3> persistent-keepalive 25"],
    },
    {
      name: "adds a missing peer and removes a strange one, the removal first",
      seen: doneHost(wantedHost({ peers: [peerOf(2), peerOf(8)] })),
      want: [
        "wg set clusternet peer <8> remove peer <3> endpoint [2001:db8::3]:7838 allowed-ips 10.192.3.0/24,fd00:3::/64",
      ],
    },
    {
      name: "keeps a strange peer while the picture is not full",
      seen: doneHost(wantedHost({ peers: [peerOf(2), peerOf(8)] })),
      wanted: { ...three, exact: false },
      want: ["wg set clusternet peer <3> endpoint [2001:db8::3]:7838 allowed-ips 10.192.3.0/24,fd00:3::/64"],
    },
    {
      name: "removes a peer that was wanted and is no more, although the picture is not full",
      seen: doneHost(wantedHost({ peers: [...three.peers, peerOf(8)] })),
      wanted: { ...three, exact: false },
      memory: { formerPeers: new Set([publicKeyOf(8)]) },
      want: ["wg set clusternet peer <8> remove"],
    },
    {
      name: "gives a node's new key the endpoint and every prefix once the old key is gone",
      seen: done,
      wanted: { ...three, peers: [peerOf(2, { key: 12 }), ...three.peers.slice(1)] },
      want: ["wg set clusternet peer <2> remove peer <12> endpoint 192.0.2.2:7838 allowed-ips 10.192.2.0/24"],
    },
    {
      name: "makes a deleted route again",
      seen: { ...done, routes: done.routes.filter(({ type }) => type !== "unicast") },
      want: [route4, route6],
    },
    {
      name: "replaces a route of ours with another source, device or type",
      seen: withRoute(withRoute(done, "10.192.0.0/11", { device: "eth0" }), "fd00::/16", { src: "fd00::9" }),
      want: [route4.replace("add", "replace"), route6.replace("add", "replace")],
    },
    {
      name: "replaces an IPv6 route that lost its source together with the address",
      seen: {
        ...done,
        loopback: ["127.0.0.1", "10.192.1.1", "::1"],
        routes: done.routes.map((route) =>
          route.network.family === 6 && route.type === "unicast"
            ? { network: net6, type: "unicast", device: "clusternet", protocol: 129, metric: 1024 }
            : route,
        ),
      },
      want: ["ip address add fd00:1::1/128 dev lo nodad", route6.replace("add", "replace")],
    },
    {
      name: "replaces an IPv6 route that kept a dead source",
      seen: { ...done, loopback: ["127.0.0.1", "10.192.1.1", "::1"] },
      want: ["ip address add fd00:1::1/128 dev lo nodad", route6.replace("add", "replace")],
    },
    {
      name: "deletes a second route of ours",
      seen: {
        ...done,
        routes: [
          ...done.routes,
          { network: net4, type: "unicast", device: "eth0", protocol: 129, metric: 50 },
        ],
      },
      want: ["ip -4 route delete 10.192.0.0/11 dev eth0 proto 129 metric 50"],
    },
    {
      name: "puts missing guards back",
      seen: { ...done, routes: done.routes.filter(({ type }) => type === "unicast") },
      want: [
        "ip -4 route add unreachable 10.192.0.0/11 proto 129 metric 4294967295",
        "ip -6 route add unreachable fd00::/16 proto 129 metric 4294967295",
      ],
    },
    {
      name: "adds the new loopback address, then the route with it, then takes the old one",
      seen: done,
      wanted: { ...three, loopbackAddresses: ["10.192.9.1", "fd00:1::1"].map(parseAddress) },
      want: [
        "ip address add 10.192.9.1/32 dev lo",
        "ip -4 route replace 10.192.0.0/11 dev clusternet proto 129 src 10.192.9.1",
        "ip address delete 10.192.1.1/32 dev lo",
      ],
    },
    {
      name: "takes the source out of the route before the last address goes",
      seen: done,
      wanted: { ...three, loopbackAddresses: [parseAddress("fd00:1::1")] },
      want: [
        "ip -4 route replace 10.192.0.0/11 dev clusternet proto 129",
        "ip address delete 10.192.1.1/32 dev lo",
      ],
    },
    {
      name: "leaves a loopback address that somebody else added",
      seen: done,
      wanted: { ...three, loopbackAddresses: [parseAddress("fd00:1::1")] },
      memory: { addedLoopback: new Set(["fd00:1::1"]) },
      want: ["ip -4 route replace 10.192.0.0/11 dev clusternet proto 129"],
    },
    {
      name: "takes away route and guard of a ClusterNet that is no longer wanted",
      seen: done,
      wanted: { ...three, clusterNets: [net4], loopbackAddresses: [parseAddress("10.192.1.1")] },
      memory: { formerClusterNets: [net6] },
      want: [
        "ip address delete fd00:1::1/128 dev lo",
        "ip -6 route delete unreachable fd00::/16 proto 129 metric 4294967295",
        "ip -6 route delete fd00::/16 dev clusternet proto 129 metric 1024",
      ],
    },
    {
      name: "leaves route and guard of a former ClusterNet that an agent with another interface routes now",
      seen: withRoute(done, "fd00::/16", { device: "cn2", src: "fd00:9::1" }),
      wanted: { ...three, clusterNets: [net4], loopbackAddresses: [parseAddress("10.192.1.1")] },
      memory: { formerClusterNets: [net6], addedLoopback: new Set() },
      want: [],
    },
    {
      name: "routes a ClusterNet inside the former one before it is guarded, so that no packet meets the guard",
      seen: done,
      wanted: { ...three, clusterNets: [parsePrefix("10.192.0.0/12"), net6] },
      memory: { formerClusterNets: [net4] },
      want: [
        "ip -4 route add 10.192.0.0/12 dev clusternet proto 129 src 10.192.1.1",
        "ip -4 route add unreachable 10.192.0.0/12 proto 129 metric 4294967295",
        "ip -4 route delete unreachable 10.192.0.0/11 proto 129 metric 4294967295",
        "ip -4 route delete 10.192.0.0/11 dev clusternet proto 129 metric 0",
      ],
    },
    {
      name: "guards a ClusterNet around the former one before it is routed, and takes the former guard away before its route",
      seen: done,
      wanted: { ...three, clusterNets: [parsePrefix("10.192.0.0/10"), net6] },
      memory: { formerClusterNets: [net4] },
      want: [
        "ip -4 route add unreachable 10.192.0.0/10 proto 129 metric 4294967295",
        "ip -4 route add 10.192.0.0/10 dev clusternet proto 129 src 10.192.1.1",
        "ip -4 route delete unreachable 10.192.0.0/11 proto 129 metric 4294967295",
        "ip -4 route delete 10.192.0.0/11 dev clusternet proto 129 metric 0",
      ],
    },
    {
      name: "takes an interface without a key, whatever its group",
      seen: { ...emptyHost, interface: keyless },
      wanted: wantedHost({ clusterNets: [net4], loopbackAddresses: [] }),
      want: [
        "ip -4 route add unreachable 10.192.0.0/11 proto 129 metric 4294967295",
        "ip link set dev clusternet group 9 mtu 1420",
        "wg set clusternet private-key private.key",
        "wg set clusternet listen-port 7838",
        "ip link set dev clusternet up",
        "ip -4 route add 10.192.0.0/11 dev clusternet proto 129",
      ],
    },
  ])("$name", ({ seen, wanted = three, memory = {}, want }) => {
    expect(commands(wanted, seen, remembered(memory))).toEqual(want);
    // A plan that was carried out leaves nothing to do.
    const { after } = planHost(wanted, seen, remembered(memory));
    expect(commands(wanted, after, remembered(memory))).toEqual([]);
  });

  test("adds a prefix to a peer with + where wg knows it, and says the whole list to take one away", () => {
    const context = {
      keyFile: "k",
      configFile: "c",
      implementation: "kernel",
      plusAllowedIps: true,
    } as const;
    const words = (prefixes: string[]): string[] =>
      planHost(
        { ...three, peers: [peerOf(2, { prefixes }), ...three.peers.slice(1)] },
        done,
        remembered(),
      ).steps.map((step) => named(renderStep(step, context)));
    expect(words(["10.192.2.0/24", "10.192.22.0/24"])).toEqual([
      "wg set clusternet peer <2> allowed-ips +10.192.22.0/24",
    ]);
    expect(words(["10.192.22.0/24"])).toEqual(["wg set clusternet peer <2> allowed-ips 10.192.22.0/24"]);
    expect(words([])).toEqual(['wg set clusternet peer <2> allowed-ips ""']);
  });
});

describe("planHost() leaves alone what is foreign", () => {
  const guards = ["add-guard", "add-guard"];
  const foreignKey = withLink(done, { publicKey: publicKeyOf(9), group: 0 });

  test.each<{ name: string; seen: SeenHost; steps: string[]; problem: string }>([
    {
      name: "a link of our name that is not WireGuard",
      seen: { ...emptyHost, foreignLink: "bridge" },
      steps: [...guards, "add-loopback", "add-loopback"],
      problem:
        'Cannot use interface "clusternet": a link of this name is there that is not WireGuard (bridge); it is left alone (to remove it: ip link delete dev clusternet)',
    },
    {
      name: "WireGuard of our name with a key that is none of ours",
      seen: { ...foreignKey, routes: [], loopback: [] },
      steps: [...guards, "add-loopback", "add-loopback"],
      problem:
        'Cannot use interface "clusternet": a WireGuard interface of this name is there with the key <9>, which is none of ours; it is left alone (to remove it: ip link delete dev clusternet)',
    },
    {
      name: "a route of another protocol with our metric",
      seen: withRoute(done, "10.192.0.0/11", { protocol: 3, device: "eth0" }),
      steps: [],
      problem:
        'Cannot route 10.192.0.0/11 into "clusternet": a route of protocol 3 with metric 0 dev eth0 is there; it is left alone (to remove it: ip route delete 10.192.0.0/11 dev eth0 proto 3)',
    },
    {
      name: "an IPv6 route of another protocol with a better metric",
      seen: {
        ...done,
        routes: [
          ...done.routes,
          { network: net6, type: "unicast", device: "eth0", protocol: 4, metric: 100 },
        ],
      },
      steps: [],
      problem:
        'Cannot route fd00::/16 into "clusternet": a route of protocol 4 with metric 100 dev eth0 is there; it is left alone (to remove it: ip -6 route delete fd00::/16 dev eth0 proto 4)',
    },
  ])("$name", ({ seen, steps, problem }) => {
    const plan = planHost(three, seen, remembered());
    expect(plan.steps.map((step) => step.kind) as string[]).toEqual(steps);
    expect(plan.problems.map(({ message }) => named(message))).toEqual([problem]);
  });

  test("WireGuard with another key is ours when it has our group and our route", () => {
    const seen = withLink(done, { publicKey: publicKeyOf(9) });
    expect(commands(three, seen)).toEqual(["wg set clusternet private-key private.key"]);
  });

  test("a renamed link is not ours by its index alone", () => {
    const seen = withLink(done, { name: "foo", publicKey: publicKeyOf(9) });
    expect(commands(three, { ...seen, routes: done.routes })[0]).toBe(
      "ip link add dev clusternet group 9 mtu 1420 type wireguard",
    );
  });
});

describe("planHost() sets an endpoint (C4.6)", () => {
  const key = publicKeyOf(2);
  const now = 1_000_000;
  const roamed = "198.51.100.7:40000";
  const announced = "192.0.2.2:7838";
  const stale = "192.0.2.2:7839";

  test.each([
    { name: "not when it is the announced one", endpoint: announced, set: false },
    { name: "not when it roamed", endpoint: roamed, set: false },
    { name: "when the announced address changed", endpoint: roamed, before: "192.0.2.3:7838", set: true },
    { name: "when a command that failed may have set it", endpoint: stale, tried: [stale], set: true },
    { name: "not when one that failed was to set another", endpoint: roamed, tried: [stale], set: false },
    { name: "when nothing came for 275 s", endpoint: roamed, quietMs: 275_000, set: true },
    { name: "not when nothing came for a little less", endpoint: roamed, quietMs: 274_999, set: false },
    {
      name: "not at start when the last handshake is 180 s ago",
      endpoint: roamed,
      starting: true,
      age: 180,
      set: false,
    },
    {
      name: "at start when the last handshake is older",
      endpoint: roamed,
      starting: true,
      age: 181,
      set: true,
    },
    {
      name: "at start when there never was a handshake",
      endpoint: roamed,
      starting: true,
      age: now,
      set: true,
    },
    { name: "when the peer has none", endpoint: undefined, set: true },
    {
      name: "never for a node without usable address",
      endpoint: roamed,
      starting: true,
      age: now,
      address: "",
      set: false,
    },
  ])(
    "$name",
    ({
      endpoint,
      before = announced,
      tried = [],
      quietMs = 0,
      starting = false,
      age = 10,
      address = "192.0.2.2",
      set,
    }) => {
      const wanted = wantedHost({ peers: [peerOf(2, { address })] });
      const { endpoint: _model, ...peer } = { endpoint: "", ...doneHost(wanted).interface?.peers.get(key) };
      const seen = withLink(doneHost(wanted), {
        peers: new Map([
          [
            key,
            {
              allowedIps: ["10.192.2.0/24"],
              receivedBytes: 1,
              sentBytes: 1,
              hasPresharedKey: false,
              ...peer,
              latestHandshakeSeconds: now - age,
              ...(endpoint === undefined ? {} : { endpoint }),
            },
          ],
        ]),
      });
      const endpoints = {
        starting,
        announced: () => before,
        tried: new Map([[key, new Set(tried)]]),
        quietMs: new Map([[key, quietMs]]),
        nowSeconds: now,
      };
      const want = set ? [`wg set clusternet peer <2> endpoint ${announced}`] : [];
      expect(commands(wanted, seen, remembered({ endpoints }))).toEqual(want);
    },
  );
});

function down(seen: SeenHost, memory: Partial<Remembered> = {}): { steps: string[]; problems: string[] } {
  const { steps, problems } = planDown(three, seen, remembered(memory));
  return { steps: steps.map((step) => renderStep(step)), problems: problems.map(({ kind }) => kind) };
}

describe("planDown()", () => {
  const guards = [
    "ip -4 route delete unreachable 10.192.0.0/11 proto 129 metric 4294967295",
    "ip -6 route delete unreachable fd00::/16 proto 129 metric 4294967295",
  ];

  test("removes the interface with its routes, then the addresses, and the guards last", () => {
    expect(down(done)).toEqual({
      steps: [
        "ip link delete dev clusternet",
        "ip address delete 10.192.1.1/32 dev lo",
        "ip address delete fd00:1::1/128 dev lo",
        ...guards,
      ],
      problems: [],
    });
  });

  test("does nothing where nothing of ours is", () => {
    expect(down(emptyHost)).toEqual({ steps: [], problems: [] });
  });

  test.each([
    { name: "takes", begun: "clusternet", steps: ["ip link delete dev clusternet"], problems: [] },
    { name: "leaves", begun: "cn2", steps: [], problems: ["interface-foreign"] },
    { name: "leaves", begun: undefined, steps: [], problems: ["interface-foreign"] },
  ])("$name an interface without a key when $begun was begun", ({ begun, steps, problems }) => {
    const memory = {
      addedLoopback: new Set<string>(),
      ...(begun === undefined ? {} : { begunInterface: begun }),
    };
    expect(down({ ...emptyHost, interface: keyless }, memory)).toEqual({
      steps: [...steps],
      problems: [...problems],
    });
  });

  test("leaves a foreign interface, route and address", () => {
    const seen: SeenHost = {
      ...withLink(done, { publicKey: publicKeyOf(9), group: 0 }),
      routes: [{ network: net4, type: "unicast", device: "clusternet", protocol: 3, metric: 0 }],
    };
    expect(down(seen, { addedLoopback: new Set() })).toEqual({ steps: [], problems: ["interface-foreign"] });
  });

  test("leaves route and guard of an agent that has another interface", () => {
    const elsewhere = done.routes.map((route) =>
      route.device === undefined ? route : { ...route, device: "cn2", src: "10.192.9.1" },
    );
    const { interface: _none, ...withoutLink } = done;
    expect(down({ ...withoutLink, routes: elsewhere }, { addedLoopback: new Set() })).toEqual({
      steps: [],
      problems: [],
    });
    expect(down({ ...done, routes: [...done.routes, ...elsewhere] }).steps).toEqual([
      "ip link delete dev clusternet",
      "ip address delete 10.192.1.1/32 dev lo",
      "ip address delete fd00:1::1/128 dev lo",
    ]);
  });

  test("leaves the guard of a network that another agent keeps, whose interface is away", () => {
    const { interface: _none, ...withoutLink } = done;
    const seen = { ...withoutLink, routes: done.routes.filter(({ type }) => type === "unreachable") };
    const { steps, problems } = planDown(
      { ...three, keptByOthers: new Set([net4.text]) },
      seen,
      remembered({ addedLoopback: new Set() }),
    );
    expect([steps.map((step) => renderStep(step)), problems]).toEqual([guards.slice(1), []]);
  });

  test("takes away the guard of an earlier ClusterNet too", () => {
    const former = parsePrefix("10.64.0.0/16");
    const seen: SeenHost = {
      ...emptyHost,
      routes: [{ network: former, type: "unreachable", protocol: 129, metric: 4_294_967_295 }],
    };
    expect(down(seen, { formerClusterNets: [former] })).toEqual({
      steps: ["ip -4 route delete unreachable 10.64.0.0/16 proto 129 metric 4294967295"],
      problems: [],
    });
  });
});

test("foldStep() takes a prefix from the peer that had it when another is given it", () => {
  const seen = doneHost(wantedHost({ peers: [peerOf(2), peerOf(3)] }));
  // Nobody wants the other peer, and it stays.
  const wanted = wantedHost({
    peers: [peerOf(2, { prefixes: ["10.192.2.0/24", "10.192.3.0/24"] })],
    exact: false,
  });
  const [step] = planHost(wanted, seen, remembered()).steps;
  if (step === undefined) throw new Error("nothing planned");
  const peers = foldStep(seen, step, wanted).interface?.peers;
  expect(peers?.get(publicKeyOf(2))?.allowedIps).toEqual(["10.192.2.0/24", "10.192.3.0/24"]);
  expect(peers?.get(publicKeyOf(3))?.allowedIps).toEqual([]);
});

const anyPeer = record({
  number: integer({ min: 2, max: 9 }),
  key: integer({ min: 2, max: 9 }),
  moved: boolean(),
  prefixes: subarray(["a", "b", "c"]),
});
/** What somebody else does to the peer with this key, which need not be there. */
const anyDrift = record({
  key: integer({ min: 2, max: 10 }),
  prefixes: option(subarray(["10.192.2.0/24", "10.192.3.1/24"]), { nil: undefined }),
  roams: boolean(),
});
const anyWanted = record({
  peers: uniqueArray(anyPeer, { selector: ({ number }) => number, maxLength: 6 }),
  exact: boolean(),
  /** The mesh of before once more. */
  again: boolean(),
  drifts: array(anyDrift, { maxLength: 2 }),
  quiet: boolean(),
});

test("planHost() with what the interface holds plans what it plans with a look at every peer", () => {
  const all = new Map<string, Peer>();
  const keys = new Map(Array.from({ length: 9 }, (_, index) => [index + 2, publicKeyOf(index + 102)]));
  // The same object for the same peer, as a mesh made of another one has it.
  const peerWith = ({ number, key, moved, prefixes }: ReturnType<typeof anyPeer.generate>["value"]): Peer => {
    const name = [number, key, moved, ...prefixes].join(" ");
    const networks = prefixes.map((letter) => `10.192.${number}${"abc".indexOf(letter)}.0/24`);
    const known = all.get(name);
    if (known !== undefined) return known;
    const made = peerOf(number, {
      key: key + 100,
      prefixes: networks,
      ...(moved ? { address: "192.0.2.99" } : {}),
    });
    all.set(name, made);
    return made;
  };
  // Made once: its own key takes long.
  const nobody = wantedHost({ peers: [] });
  assert(
    property(array(anyWanted, { minLength: 2, maxLength: 10 }), (meshes) => {
      let seen = doneHost(wantedHost({ peers: [peerOf(2), peerOf(11)] }));
      let held: WantedHost | undefined;
      const former = new Set<PublicKey>();
      let unsure = new Set<PublicKey>();
      for (const { peers, exact, again, drifts, quiet } of meshes) {
        for (const { key, prefixes, roams } of drifts) {
          const publicKey = keys.get(key) ?? expect.unreachable();
          const before = new Map(seen.interface?.peers);
          const change = {
            publicKey,
            ...(prefixes === undefined ? { remove: true as const } : { allowedIps: prefixes }),
            ...(roams ? { endpoint: "203.0.113.9:9" } : {}),
          };
          seen = foldStep(seen, { kind: "set-peers", name: "clusternet", changes: [change] }, nobody);
          // Whoever had a prefix that this one has now is another as well.
          const changed = [...before].filter(([other, peer]) => seen.interface?.peers.get(other) !== peer);
          unsure = new Set([...unsure, publicKey, ...changed.map(([other]) => other)]);
        }
        const byKey = new Map(peers.map((each) => [each.key, each]));
        const other = {
          ...nobody,
          exact,
          peers: [...byKey.values()].map(peerWith).toSorted((a, b) => (a.nodeId < b.nodeId ? -1 : 1)),
        };
        const wanted = again && held !== undefined ? { ...held, exact } : other;
        const endpoints = {
          ...remembered().endpoints,
          announced: ({ publicKey }: Peer) => {
            const before = held?.peers.find((peer) => peer.publicKey === publicKey);
            return before === undefined ? undefined : announcedEndpoint(before, 7838);
          },
          quietMs: { get: () => (quiet ? quietLimitMs : 0) },
        };
        const memory = remembered({ formerPeers: former, endpoints });
        const whole = planHost(wanted, seen, memory);
        const quick = planHost(wanted, seen, held === undefined ? memory : { ...memory, held, unsure });
        expect(quick.steps.map(sortedRemovals)).toEqual(whole.steps.map(sortedRemovals));
        unsure = new Set(quick.roaming);
        seen = quick.after;
        held = wanted;
        former.clear();
        for (const { publicKey } of wanted.peers) former.add(publicKey);
      }
    }),
    { numRuns: 300 },
  );
});

/** Who is removed first does not matter. */
function sortedRemovals(step: Step): Step {
  if (step.kind !== "set-peers") return step;
  const removals = step.changes.filter(({ remove }) => remove === true);
  const others = step.changes.filter(({ remove }) => remove !== true);
  return {
    ...step,
    changes: [...removals.toSorted((a, b) => (a.publicKey < b.publicKey ? -1 : 1)), ...others],
  };
}
