/**
 * What the underlay is: the address that this node announces with `--external-address auto`, and the MTU that fits
 * with `--mtu auto` (C5). Pure: given what `ip -j` printed.
 *
 * The route towards the Curator decides, because the other nodes are reached as the Curator is. A Curator on this
 * very host tells nothing; then the default route does.
 */
import * as v from "valibot";
import { ClusternetError } from "../errors.ts";
import { commonBits } from "./bits.ts";
import { linkGroup } from "./host-state.ts";
import {
  containsAddress,
  decodeAddress,
  unusableReason,
  type Address,
  type Family,
  type Prefix,
} from "./prefix.ts";
import type { Problem } from "./problem.ts";

/** What WireGuard adds to a packet: 40 bytes of IPv6, 8 of UDP, 32 of its own. */
const wireguardOverhead = 80;
/** With less the kernel takes IPv6 off an interface. */
export const minIpv6Mtu = 1280;
/** MTU of the underlay when nothing is known of it. */
const unknownUnderlayMtu = 1500;

/** A network device and its addresses. */
export interface UnderlayDevice {
  readonly name: string;
  readonly mtu: number;
  /** Link group, as a number. */
  readonly group: string;
  readonly loopback: boolean;
  readonly addresses: readonly DeviceAddress[];
}

export interface DeviceAddress {
  readonly address: Address;
  /** Length of the network that the address is in. */
  readonly prefixLength: number;
  /** A privacy address, which is replaced every day. */
  readonly temporary: boolean;
  readonly deprecated: boolean;
  /** Not proved to be this host's alone. */
  readonly tentative: boolean;
}

export interface UnderlayRoute {
  readonly family: Family;
  readonly device: string;
  /** Source address that the kernel takes. */
  readonly source?: Address;
  readonly gateway?: Address;
}

/** The underlay as seen. */
export interface Underlay {
  readonly devices: readonly UnderlayDevice[];
  /** Towards the Curator; absent when its address is unknown or unreachable. */
  readonly curatorRoute?: UnderlayRoute;
  /** Default routes, the preferred one of IPv4 before that of IPv6; none where the route to the Curator decides alone. */
  readonly defaultRoutes: readonly UnderlayRoute[];
}

export interface UnderlayRules {
  readonly clusterNets: readonly Prefix[];
  /** The mesh interface: nothing about it is underlay. A device of this name in another link group is somebody else's. */
  readonly interfaceName: string;
}

/**
 * The address to announce; undefined when no route leads to one that can be announced. The `previous` one is kept as long as it
 * is on the host and usable, so that a change of routes alone moves no endpoint.
 */
export function chooseExternalAddress(
  underlay: Underlay,
  rules: UnderlayRules,
  previous: Address | undefined,
): Address | undefined {
  const usable = underlay.devices.flatMap((device) =>
    isMesh(device.name, underlay, rules)
      ? []
      : device.addresses.filter((each) => isUsable(each, rules)).map((each) => ({ ...each, device })),
  );
  if (previous !== undefined && usable.some(({ address }) => address.text === previous.text)) return previous;
  for (const { family, device, source, gateway } of routesOf(underlay, rules)) {
    const there = usable.filter(
      (each) => each.device.name === device && each.address.family === family && !each.device.loopback,
    );
    const chosen =
      // The kernel's own choice, on whatever device it is: also an address on `lo` that a routing daemon put there.
      usable.find(({ address }) => address.text === source?.text) ??
      // When that is a temporary one: its lasting sibling. For a route without a source: the gateway's network.
      there.find((each) => isInNetworkOf(each, source ?? gateway)) ??
      there[0];
    if (chosen !== undefined) return chosen.address;
  }
  return undefined;
}

/** The MTU of the mesh interface, and `mtu-too-small` when packets of that size do not fit the underlay. */
export function chooseMtu(
  underlay: Underlay,
  rules: UnderlayRules,
): { readonly mtu: number; readonly problems: readonly Problem[] } {
  const device = routesOf(underlay, rules)
    .map((route) => underlay.devices.find(({ name }) => name === route.device))
    .find((each) => each?.loopback === false);
  const fits = (device?.mtu ?? unknownUnderlayMtu) - wireguardOverhead;
  if (fits >= minIpv6Mtu || !rules.clusterNets.some(({ family }) => family === 6))
    return { mtu: fits, problems: [] };
  const where = device === undefined ? "the underlay" : `device "${device.name}"`;
  const message =
    `MTU ${minIpv6Mtu}, which IPv6 needs at least, does not fit ${where}: its MTU is ${fits + wireguardOverhead}, ` +
    `expected ${minIpv6Mtu + wireguardOverhead} or more: large packets are sent in fragments or lost`;
  return { mtu: minIpv6Mtu, problems: [{ kind: "mtu-too-small", message }] };
}

/**
 * Whether the route to the Curator decides alone, so that address and MTU are the same whatever the default routes are:
 * they need not be read then.
 */
export function isDecidedByCurator(
  underlay: Omit<Underlay, "defaultRoutes">,
  rules: UnderlayRules,
  previous: Address | undefined,
): boolean {
  const alone = { ...underlay, defaultRoutes: [] };
  const through = routedDevices(alone, rules);
  return (
    underlay.devices.some(({ name, loopback }) => !loopback && through.includes(name)) &&
    chooseExternalAddress(alone, rules, previous) !== undefined
  );
}

/** Names of the devices that the routes of the underlay lead through. */
export function routedDevices(underlay: Underlay, rules: UnderlayRules): readonly string[] {
  return [...new Set(routesOf(underlay, rules).map(({ device }) => device))];
}

/** Whether some device has this address, the mesh interface aside. */
export function hasAddress(underlay: Underlay, rules: UnderlayRules, text: string): boolean {
  return underlay.devices.some(
    ({ name, addresses }) =>
      !isMesh(name, underlay, rules) && addresses.some(({ address }) => address.text === text),
  );
}

/** The routes of the underlay, the one that decides first. */
function routesOf(underlay: Underlay, rules: UnderlayRules): UnderlayRoute[] {
  const { curatorRoute, defaultRoutes } = underlay;
  return [...(curatorRoute === undefined ? [] : [curatorRoute]), ...defaultRoutes].filter(
    ({ device }) => !isMesh(device, underlay, rules),
  );
}

/** One that was not seen among the devices was made since, and is not asked about: by its name it is ours. */
function isMesh(name: string, { devices }: Underlay, { interfaceName }: UnderlayRules): boolean {
  if (name !== interfaceName) return false;
  return !devices.some((device) => device.name === name && device.group !== String(linkGroup));
}

function isUsable(each: DeviceAddress, { clusterNets }: UnderlayRules): boolean {
  if (each.temporary || each.deprecated || each.tentative) return false;
  if (unusableReason(each.address) !== undefined) return false;
  return !clusterNets.some((network) => containsAddress(network, each.address));
}

function isInNetworkOf({ address, prefixLength }: DeviceAddress, other: Address | undefined): boolean {
  if (other?.family !== address.family) return false;
  return commonBits(address, other) >= prefixLength;
}

const flag = v.optional(v.boolean(), false);
/** A number in what `ip -j` prints: the kernel counts with 32 bits, never with a fraction or a sign. */
export const ipNumber = v.pipe(v.number(), v.integer(), v.minValue(0), v.maxValue(0xffff_ffff));

const devicesSchema = v.array(
  v.object({
    ifname: v.string(),
    mtu: ipNumber,
    group: v.optional(v.string(), "0"),
    flags: v.optional(v.array(v.string()), []),
    addr_info: v.optional(
      v.array(
        v.object({
          local: v.optional(v.string()),
          prefixlen: v.optional(v.pipe(ipNumber, v.maxValue(128)), 0),
          temporary: flag,
          deprecated: flag,
          tentative: flag,
          dadfailed: flag,
        }),
      ),
      [],
    ),
  }),
);

/** Parses `ip -N -j -d address show`. Throws ClusternetError when it is something else. */
export function parseDevices(json: string): readonly UnderlayDevice[] {
  return parseList(json, "ifname", devicesSchema).map((device) => ({
    name: device.ifname,
    mtu: device.mtu,
    group: device.group,
    loopback: device.flags.includes("LOOPBACK"),
    addresses: device.addr_info.flatMap(
      ({ local, prefixlen, temporary, deprecated, tentative, dadfailed }) => {
        const address = addressOf(local);
        if (address === undefined) return [];
        return [
          { address, prefixLength: prefixlen, temporary, deprecated, tentative: tentative || dadfailed },
        ];
      },
    ),
  }));
}

const hop = { dev: v.optional(v.string()), gateway: v.optional(v.string()) };

/** Route types of rtnetlink(7) by number, as `ip -N` prints them. */
const [unicast, local] = ["1", "2"];

const routesSchema = v.array(
  v.object({
    dst: v.string(),
    type: v.optional(v.string(), unicast),
    ...hop,
    /** The gateway when it is of the other family. */
    via: v.optional(v.object({ host: v.optional(v.string()) })),
    prefsrc: v.optional(v.string()),
    metric: v.optional(ipNumber, 0),
    flags: v.optional(v.array(v.string()), []),
    nexthops: v.optional(v.array(v.object({ ...hop, flags: v.optional(v.array(v.string()), []) })), []),
  }),
);

/**
 * Parses `ip -N -j -d route get ADDRESS`, or `ip -N -j -d route show default` and its IPv6 form: the best route that leads
 * somewhere, undefined when there is none. Throws ClusternetError when it is something else.
 */
export function parseRoute(json: string, family: Family): UnderlayRoute | undefined {
  const [route] = parseList(json, "dst", routesSchema)
    .filter(({ type }) => type === unicast || type === local)
    // A cable that is pulled out is better than nothing: its device still has the MTU and the address.
    .toSorted((a, b) => Number(isDown(a)) - Number(isDown(b)) || a.metric - b.metric);
  const nextHop = route?.nexthops.toSorted((a, b) => Number(isDown(a)) - Number(isDown(b)))[0];
  const device = route?.dev ?? nextHop?.dev;
  if (route === undefined || device === undefined) return undefined;
  const source = addressOf(route.prefsrc);
  const gateway = addressOf(route.gateway ?? route.via?.host ?? nextHop?.gateway);
  return {
    family,
    device,
    ...(source === undefined ? {} : { source }),
    ...(gateway === undefined ? {} : { gateway }),
  };
}

function isDown({ flags }: { readonly flags: readonly string[] }): boolean {
  return flags.includes("linkdown") || flags.includes("dead");
}

/** What `ip -j` printed: nothing at all for an empty list, and an empty object for each item that it left out. */
function parseList<T>(json: string, field: string, schema: v.GenericSchema<unknown, T[]>): T[] {
  let list: unknown;
  try {
    list = json.trim() === "" ? [] : JSON.parse(json);
  } catch (error) {
    throw new ClusternetError("Cannot parse what ip printed: it is not JSON", { cause: error });
  }
  const items: unknown = Array.isArray(list)
    ? list.filter((item) => Object.hasOwn(Object(item), field))
    : list;
  const result = v.safeParse(schema, items);
  if (result.success) return result.output;
  const [issue] = result.issues;
  throw new ClusternetError(
    `Cannot parse what ip printed: field "${v.getDotPath(issue) ?? ""}" is missing or wrong`,
  );
}

function addressOf(text: string | undefined): Address | undefined {
  if (text === undefined) return undefined;
  const address = decodeAddress(text);
  return "reason" in address ? undefined : address;
}
