/** The choice of external address and MTU from what `ip -j` prints (iproute2 6.1.0 made the texts). */
import { describe, expect, test } from "bun:test";
import { parseAddress, parsePrefix, type Address } from "../../src/core/prefix.ts";
import {
  chooseExternalAddress,
  chooseMtu,
  isDecidedByCurator,
  parseDevices,
  parseRoute,
  type DeviceAddress,
  type Underlay,
  type UnderlayDevice,
  type UnderlayRoute,
} from "../../src/core/underlay.ts";
import { failure } from "../host/temporary.ts";

/** "192.0.2.1/24" or "2001:db8::1/64 temporary". */
function deviceAddress(text: string): DeviceAddress {
  const [cidr = "", ...flags] = text.split(" ");
  const [address = "", length] = cidr.split("/");
  return {
    address: parseAddress(address),
    prefixLength: Number(length),
    temporary: flags.includes("temporary"),
    deprecated: flags.includes("deprecated"),
    tentative: flags.includes("tentative"),
  };
}

function device(name: string, addresses: readonly string[], mtu = 1500, group = "0"): UnderlayDevice {
  return { name, mtu, group, loopback: name === "lo", addresses: addresses.map(deviceAddress) };
}

/** "eth0 src 192.0.2.1 via 192.0.2.254", with 4 or 6 in front. */
function route(text: string): UnderlayRoute {
  const [family, name = "", ...rest] = text.split(" ");
  const after = (word: string): Address | undefined => {
    const at = rest.indexOf(word);
    return at < 0 ? undefined : parseAddress(rest[at + 1] ?? "");
  };
  const [source, gateway] = [after("src"), after("via")];
  return {
    family: family === "4" ? 4 : 6,
    device: name,
    ...(source === undefined ? {} : { source }),
    ...(gateway === undefined ? {} : { gateway }),
  };
}

interface Case {
  readonly name: string;
  readonly devices: readonly UnderlayDevice[];
  readonly curator?: string;
  readonly defaults?: readonly string[];
}

function underlay({ devices, curator, defaults = [] }: Omit<Case, "name">): Underlay {
  return {
    devices,
    ...(curator === undefined ? {} : { curatorRoute: route(curator) }),
    defaultRoutes: defaults.map(route),
  };
}

const rules = {
  clusterNets: [parsePrefix("10.192.0.0/11"), parsePrefix("fd00:1::/48")],
  interfaceName: "clusternet",
};
const lo = device("lo", ["127.0.0.1/8", "::1/128"], 65_536);
const eth0 = device("eth0", ["192.0.2.1/24", "2001:db8::1/64", "fe80::1/64"]);

describe("chooseExternalAddress()", () => {
  const cases: readonly (Case & { readonly previous?: string; readonly want: string | undefined })[] = [
    {
      name: "takes the source of the route to the Curator",
      devices: [lo, eth0, device("eth1", ["198.51.100.1/24"])],
      curator: "4 eth1 src 198.51.100.1",
      defaults: ["4 eth0 via 192.0.2.254"],
      want: "198.51.100.1",
    },
    {
      name: "takes the default route's for a Curator on loopback",
      devices: [lo, eth0],
      curator: "4 lo src 127.0.0.1",
      defaults: ["4 eth0 via 192.0.2.254"],
      want: "192.0.2.1",
    },
    {
      name: "takes this host's own address that the Curator is reached at",
      devices: [lo, eth0, device("eth1", ["198.51.100.1/24"])],
      curator: "4 lo src 198.51.100.1",
      defaults: ["4 eth0 via 192.0.2.254"],
      want: "198.51.100.1",
    },
    {
      name: "takes the default route's while the Curator is not known",
      devices: [lo, eth0],
      defaults: ["4 eth0 via 192.0.2.254", "6 eth0 via fe80::fe"],
      want: "192.0.2.1",
    },
    {
      name: "takes the IPv6 default route where there is no other",
      devices: [lo, eth0],
      defaults: ["6 eth0 via fe80::fe"],
      want: "2001:db8::1",
    },
    {
      name: "takes the address in the gateway's network of a device with several",
      devices: [lo, device("eth0", ["203.0.113.1/24", "192.0.2.1/24"])],
      defaults: ["4 eth0 via 192.0.2.254"],
      want: "192.0.2.1",
    },
    {
      name: "takes the source that a default route names",
      devices: [lo, device("eth0", ["192.0.2.1/24", "192.0.2.7/24"])],
      defaults: ["4 eth0 via 192.0.2.254 src 192.0.2.7"],
      want: "192.0.2.7",
    },
    {
      name: "takes the lasting sibling in the same network for a temporary source",
      devices: [lo, device("eth0", ["2001:db8:1::7/64", "2001:db8::aaaa/64 temporary", "2001:db8::1/64"])],
      curator: "6 eth0 src 2001:db8::aaaa",
      want: "2001:db8::1",
    },
    {
      name: "takes another network's address of the device for a deprecated source",
      devices: [lo, device("eth0", ["2001:db8::1/64 deprecated", "2001:db8:1::1/64"])],
      curator: "6 eth0 src 2001:db8::1",
      want: "2001:db8:1::1",
    },
    {
      name: "passes over a tentative address",
      devices: [lo, device("eth0", ["2001:db8::1/64 tentative"])],
      curator: "6 eth0 src 2001:db8::1",
      want: undefined,
    },
    {
      name: "takes an address on lo when the kernel takes it as source",
      devices: [device("lo", ["127.0.0.1/8", "203.0.113.7/32"]), device("eth0", ["192.0.2.1/24"])],
      curator: "4 eth0 src 203.0.113.7",
      want: "203.0.113.7",
    },
    {
      name: "takes no address on lo of its own accord",
      devices: [device("lo", ["127.0.0.1/8", "203.0.113.7/32"])],
      curator: "4 lo src 127.0.0.1",
      defaults: ["4 lo"],
      want: undefined,
    },
    {
      name: "takes no link-local one: the default route's instead",
      devices: [lo, device("eth1", ["169.254.1.1/16", "fe80::1/64"]), eth0],
      curator: "6 eth1 src fe80::1",
      defaults: ["4 eth0 via 192.0.2.254"],
      want: "192.0.2.1",
    },
    {
      name: "takes none inside ClusterNet",
      devices: [lo, device("cni0", ["10.192.1.1/24", "fd00:1::1/64"])],
      curator: "4 cni0 src 10.192.1.1",
      defaults: ["6 cni0"],
      want: undefined,
    },
    {
      name: "takes none of the mesh interface, whatever route leads there",
      devices: [lo, device("clusternet", ["192.0.2.9/32"], 1420, "9"), eth0],
      curator: "4 clusternet src 192.0.2.9",
      defaults: ["4 clusternet", "4 eth0 via 192.0.2.254"],
      want: "192.0.2.1",
    },
    {
      name: "takes that of another's interface which bears the name of ours",
      devices: [lo, device("clusternet", ["192.0.2.9/24"])],
      curator: "4 clusternet src 192.0.2.9",
      want: "192.0.2.9",
    },
    {
      name: "takes none of an interface of our name that was made since the devices were read",
      devices: [lo, eth0],
      curator: "4 clusternet src 192.0.2.9",
      defaults: ["4 eth0 via 192.0.2.254"],
      want: "192.0.2.1",
    },
    {
      name: "keeps to the family of the route",
      devices: [lo, device("eth0", ["192.0.2.1/24"])],
      defaults: ["6 eth0 via fe80::fe"],
      want: undefined,
    },
    {
      name: "keeps the previous address while it is on the host, though routes changed",
      devices: [lo, eth0, device("eth1", ["198.51.100.1/24"])],
      curator: "4 eth1 src 198.51.100.1",
      previous: "192.0.2.1",
      want: "192.0.2.1",
    },
    {
      name: "keeps the previous address when no route is left",
      devices: [lo, eth0],
      previous: "192.0.2.1",
      want: "192.0.2.1",
    },
    {
      name: "follows when the previous address goes",
      devices: [lo, device("eth0", ["192.0.2.2/24"])],
      curator: "4 eth0 src 192.0.2.2",
      previous: "192.0.2.1",
      want: "192.0.2.2",
    },
    {
      name: "follows when the previous address is deprecated",
      devices: [lo, device("eth0", ["2001:db8::1/64 deprecated", "2001:db8:1::1/64"])],
      curator: "6 eth0 src 2001:db8:1::1",
      previous: "2001:db8::1",
      want: "2001:db8:1::1",
    },
    { name: "finds none on a host without a network", devices: [lo], want: undefined },
  ];
  test.each(cases)("$name", ({ previous, want, ...rest }) => {
    const before = previous === undefined ? undefined : parseAddress(previous);
    expect(chooseExternalAddress(underlay(rest), rules, before)?.text).toBe(want as string);
  });
});

function tooSmall(where: string, mtu: number): unknown[] {
  const message = `MTU 1280, which IPv6 needs at least, does not fit ${where}: its MTU is ${mtu}, expected 1360 or more: large packets are sent in fragments or lost`;
  return [{ kind: "mtu-too-small", message }];
}

describe("chooseMtu()", () => {
  const onlyIpv4 = { ...rules, clusterNets: [parsePrefix("10.192.0.0/11")] };
  const cases: readonly (Case & { readonly ipv6?: boolean; readonly want: unknown })[] = [
    ...[
      [1500, 1420],
      [1460, 1380],
      [9001, 8921],
      [1400, 1320],
      [1360, 1280],
      [1300, 1220],
    ].map(([mtu, want]) => ({
      name: `is ${want} on an underlay of ${mtu}`,
      devices: [lo, device("eth0", [], mtu)],
      curator: "4 eth0 src 192.0.2.1",
      want: { mtu: want, problems: [] },
    })),
    {
      name: "is 1280 with an IPv6 ClusterNet on an underlay that is too small, and reported",
      devices: [lo, device("eth0", [], 1300)],
      curator: "4 eth0 src 192.0.2.1",
      ipv6: true,
      want: { mtu: 1280, problems: tooSmall('device "eth0"', 1300) },
    },
    {
      name: "is 1280 with an IPv6 ClusterNet where that just fits, and not reported",
      devices: [lo, device("eth0", [], 1360)],
      curator: "4 eth0 src 192.0.2.1",
      ipv6: true,
      want: { mtu: 1280, problems: [] },
    },
    {
      name: "is the default route's for a Curator on loopback",
      devices: [lo, device("eth0", [], 1400)],
      curator: "4 lo src 127.0.0.1",
      defaults: ["4 eth0 via 192.0.2.254"],
      want: { mtu: 1320, problems: [] },
    },
    {
      name: "is the Curator route's before the default route's",
      devices: [lo, device("eth0", [], 1400), device("eth1", [], 9000)],
      curator: "4 eth1 src 192.0.2.1",
      defaults: ["4 eth0 via 192.0.2.254"],
      want: { mtu: 8920, problems: [] },
    },
    {
      name: "is never that of a route through the mesh itself",
      devices: [lo, device("clusternet", [], 1420, "9"), device("eth0", [], 1500)],
      curator: "4 clusternet",
      defaults: ["4 eth0 via 192.0.2.254"],
      want: { mtu: 1420, problems: [] },
    },
    {
      name: "is that of a route through another's interface which bears the name of ours",
      devices: [lo, device("clusternet", [], 1400)],
      curator: "4 clusternet",
      want: { mtu: 1320, problems: [] },
    },
    {
      name: "is 1420 where nothing is known",
      devices: [lo],
      curator: "4 lo src 127.0.0.1",
      ipv6: true,
      want: { mtu: 1420, problems: [] },
    },
  ];
  test.each(cases)("$name", ({ ipv6 = false, want, ...rest }) => {
    expect(chooseMtu(underlay(rest), ipv6 ? rules : onlyIpv4)).toEqual(want as never);
  });
});

describe("parseDevices()", () => {
  test("reads names, MTU, addresses and what makes them unfit, and skips what ip left out", () => {
    const json = `[{},{"ifindex":1,"ifname":"lo","flags":["LOOPBACK","UP"],"mtu":65536,"addr_info":[{"family":"inet","local":"127.0.0.1","prefixlen":8,"scope":"host"}]},
      {"ifindex":4,"ifname":"eth0","flags":["BROADCAST","UP"],"mtu":1400,"addr_info":[
        {"family":"inet","local":"192.0.2.2","prefixlen":24,"scope":"global"},
        {"family":"inet6","local":"2001:db8::a","prefixlen":64,"scope":"global","temporary":true,"dynamic":true},
        {"family":"inet6","local":"2001:db8::b","prefixlen":64,"scope":"global","deprecated":true},
        {"family":"inet6","local":"2001:db8::c","prefixlen":64,"scope":"global","dadfailed":true},
        {}]},
      {"ifindex":5,"ifname":"tun0","flags":["POINTOPOINT"],"mtu":1500}]`;
    expect(parseDevices(json)).toEqual([
      device("lo", ["127.0.0.1/8"], 65_536),
      device(
        "eth0",
        ["192.0.2.2/24", "2001:db8::a/64 temporary", "2001:db8::b/64 deprecated", "2001:db8::c/64 tentative"],
        1400,
      ),
      device("tun0", []),
    ]);
  });

  test.each([
    { name: "nothing", json: "\n", want: [] },
    { name: "an empty list", json: "[]", want: [] },
  ])("reads $name", ({ json, want }) => {
    expect(parseDevices(json)).toEqual(want);
  });

  test.each([
    { name: "text", json: "Device not found", message: "Cannot parse what ip printed: it is not JSON" },
    {
      name: "a device without MTU",
      json: '[{"ifname":"a"}]',
      message: 'Cannot parse what ip printed: field "0.mtu" is missing or wrong',
    },
    { name: "an object", json: "{}", message: 'Cannot parse what ip printed: field "" is missing or wrong' },
  ])("refuses $name", async ({ json, message }) => {
    expect((await failure(() => parseDevices(json))).message).toBe(message);
  });
});

describe("parseRoute()", () => {
  test.each([
    {
      name: "a route through a gateway",
      json: '[{"type":"1","dst":"8.8.8.8","gateway":"192.0.2.254","dev":"v0","prefsrc":"192.0.2.1","flags":[],"uid":0,"cache":[]}]',
      want: "4 v0 src 192.0.2.1 via 192.0.2.254",
    },
    {
      name: "a local route",
      json: '[{"type":"2","dst":"192.0.2.1","dev":"lo","prefsrc":"192.0.2.1","flags":[],"uid":0,"cache":["local"]}]',
      want: "4 lo src 192.0.2.1",
    },
    {
      name: "the first next hop of several that is up",
      json: '[{"dst":"default","flags":[],"nexthops":[{"gateway":"192.0.2.253","dev":"v0","weight":1,"flags":["linkdown"]},{"gateway":"192.0.2.252","dev":"v1","weight":1,"flags":[]}]}]',
      want: "4 v1 via 192.0.2.252",
    },
    {
      name: "a gateway of the other family",
      json: '[{"dst":"default","via":{"family":"inet6","host":"fe80::1"},"dev":"v0","flags":[]}]',
      want: "4 v0 via fe80::1",
    },
    {
      name: "the smallest metric of several",
      json: '[{"dst":"default","gateway":"192.0.2.1","dev":"wlan0","metric":600,"flags":[]},{"dst":"default","gateway":"192.0.2.2","dev":"eth0","metric":100,"flags":[]}]',
      want: "4 eth0 via 192.0.2.2",
    },
    {
      name: "one that is up before one with a smaller metric that is down",
      json: '[{"dst":"default","gateway":"192.0.2.2","dev":"eth0","metric":100,"flags":["linkdown"]},{"dst":"default","gateway":"192.0.2.1","dev":"wlan0","metric":600,"flags":[]}]',
      want: "4 wlan0 via 192.0.2.1",
    },
    {
      name: "one that is down when there is no other",
      json: '[{"dst":"default","gateway":"192.0.2.2","dev":"eth0","flags":["linkdown"]}]',
      want: "4 eth0 via 192.0.2.2",
    },
    { name: "no route", json: "", want: undefined },
    {
      name: "an unreachable one",
      json: '[{"type":"7","dst":"default","dev":"lo","metric":4294967295,"flags":[]}]',
      want: undefined,
    },
  ])("reads $name", ({ json, want }) => {
    expect(parseRoute(json, 4)).toEqual((want === undefined ? undefined : route(want)) as UnderlayRoute);
  });
});

describe("isDecidedByCurator()", () => {
  const eth1 = device("eth1", ["198.51.100.1/24"], 1400);
  const temporary = { ...eth1, addresses: eth1.addresses.map((each) => ({ ...each, temporary: true })) };
  test.each<{
    name: string;
    devices: readonly UnderlayDevice[];
    curator?: string;
    previous?: string;
    want: boolean;
  }>([
    {
      name: "by a route with an address",
      devices: [lo, eth0, eth1],
      curator: "4 eth1 src 198.51.100.1",
      want: true,
    },
    { name: "not without a route", devices: [lo, eth0, eth1], want: false },
    {
      name: "not by one to this host",
      devices: [lo, eth0, eth1],
      curator: "4 lo src 127.0.0.1",
      want: false,
    },
    {
      name: "not by one through the mesh",
      devices: [lo, eth0, device("clusternet", ["198.51.100.9/24"], 1420, "9")],
      curator: "4 clusternet src 198.51.100.9",
      want: false,
    },
    {
      name: "not by one whose device has no address to announce",
      devices: [lo, eth0, temporary],
      curator: "4 eth1 src 198.51.100.1",
      want: false,
    },
    {
      name: "by such a one when the address of before is still there",
      devices: [lo, eth0, temporary],
      curator: "4 eth1 src 198.51.100.1",
      previous: "192.0.2.1",
      want: true,
    },
    {
      name: "not by a device that is not there",
      devices: [lo, eth0],
      curator: "4 eth1 src 192.0.2.1",
      want: false,
    },
  ])("$name", ({ devices, curator, previous, want }) => {
    const before = previous === undefined ? undefined : parseAddress(previous);
    const known = underlay({ devices, ...(curator === undefined ? {} : { curator }) });
    expect(isDecidedByCurator(known, rules, before)).toBe(want);
    if (!want) return;
    // Then no default route changes anything.
    for (const defaults of [["4 eth0 via 192.0.2.254"], ["6 eth0 via fe80::fe", "4 eth0 src 192.0.2.1"]]) {
      const whole = underlay({ devices, defaults, ...(curator === undefined ? {} : { curator }) });
      expect(chooseExternalAddress(whole, rules, before)).toEqual(
        chooseExternalAddress(known, rules, before),
      );
      expect(chooseMtu(whole, rules)).toEqual(chooseMtu(known, rules));
    }
  });
});
