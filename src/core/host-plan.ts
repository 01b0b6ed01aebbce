/**
 * Wanted against seen: the steps that make this host match, as data (C4.1, C4.3, C4.9, C4.11, C4.12).
 *
 * Pure: host/read.ts makes what is seen, host/apply.ts carries steps out, core/host-commands.ts says what commands
 * they are, core/host-fold.ts what they leave behind. A plan is made by pretending: each step is folded into what is
 * seen before the next is thought of, so a step's side effects (a link set down loses its routes) are planned for.
 *
 * The order keeps packets for ClusterNet from leaving unencrypted and peers from losing any: the guard first; group
 * and MTU before the link is up and routed; a new loopback address before the route that has it as source, and the
 * old address last, since the kernel drops an IPv4 route together with its source.
 */
import { foldStep } from "./host-fold.ts";
import {
  announcedEndpoint,
  guardMetric,
  linkGroup,
  routeMetric,
  routeProtocol,
  type EndpointMemory,
  type Owned,
  type PeerChange,
  type Remembered,
  type SeenHost,
  type SeenInterface,
  type SeenPeer,
  type SeenRoute,
  type Step,
  type WantedHost,
} from "./host-state.ts";
import type { PublicKey } from "./key.ts";
import type { Peer } from "./mesh.ts";
import { diffMeshes } from "./mesh-changes.ts";
import { containsPrefix, fewPrefixes, parseAddress, type Prefix } from "./prefix.ts";
import { quote, type Problem } from "./problem.ts";

export type * from "./host-state.ts";

export interface HostPlan {
  /** In the order in which they must be done. Empty when nothing differs. */
  readonly steps: readonly Step[];
  /** `interface-foreign`, `route-foreign`: what is left alone. */
  readonly problems: readonly Problem[];
  /** What is seen once all steps are done. */
  readonly after: SeenHost;
  /** Of the peers that were looked at, those whose endpoint is left as it is for now: how long depends on the time (C4.6). */
  readonly roaming: readonly PublicKey[];
}

/** The steps from what is seen to what is wanted. The same three arguments give the same steps. */
export function planHost(wanted: WantedHost, seen: SeenHost, remembered: Remembered): HostPlan {
  const draft = new Draft(wanted, seen);
  const foreign = foreignInterface(wanted, seen, remembered);
  // A guard inside a network that is routed still would take that route's packets until its own route is there.
  const routed = wanted.clusterNets.filter((network) => isInsideFormer(network, seen, remembered));
  for (const network of wanted.clusterNets) if (!routed.includes(network)) planGuard(draft, network);
  if (foreign === undefined) planInterface(draft, remembered);
  // A source that is not on the host just now: 6.1 keeps it in an IPv6 route, and the route has to be made again.
  const present = new Set(seen.loopback);
  for (const address of wanted.loopbackAddresses) {
    if (!present.has(address.text)) draft.take({ kind: "add-loopback", address });
  }
  const problems: Problem[] = foreign === undefined ? [] : [foreign];
  if (foreign === undefined) {
    for (const network of wanted.clusterNets) {
      const problem = planRoute(draft, network, present);
      if (problem !== undefined) problems.push(problem);
    }
  }
  for (const network of routed) planGuard(draft, network);
  removeLoopback(draft, remembered, new Set(wanted.loopbackAddresses.map((address) => address.text)));
  const stillWanted = new Set(wanted.clusterNets.map((network) => network.text));
  for (const network of remembered.formerClusterNets) {
    if (stillWanted.has(network.text) || isRoutedElsewhere(draft.seen, network, wanted.interfaceName))
      continue;
    // The guard first: without its route it would take the packets of a wider network that is wanted now.
    for (const step of removals(draft.seen, network)) draft.take(step);
  }
  return { steps: draft.steps, problems, roaming: draft.roaming, after: draft.seen };
}

/** What `down` takes away. */
export interface DownWanted extends Pick<WantedHost, "interfaceName" | "clusterNets" | "publicKey"> {
  /** Texts of networks that another agent keeps, whether it has its route there or not: route and guard are its own. */
  readonly keptByOthers?: ReadonlySet<string>;
}

/**
 * `down`: takes away what is ours. The guards go last: until then no packet for ClusterNet leaves unencrypted.
 * Nothing of ours there: no step.
 */
export function planDown(wanted: DownWanted, seen: SeenHost, owned: Owned): HostPlan {
  const draft = new Draft(
    { ...wanted, listenPort: 0, mtu: 0, peers: [], loopbackAddresses: [], exact: true },
    seen,
  );
  const link = seen.interface;
  const problems: Problem[] = [];
  const isOurOwn =
    link !== undefined && (isOurs(link, seen, wanted.publicKey, owned) || isBegun(link, owned));
  if (isOurOwn) {
    draft.take({ kind: "delete-link", name: link.name });
  } else if (link !== undefined || seen.foreignLink !== undefined) {
    problems.push(foreignProblem(wanted.interfaceName, seen));
  }
  removeLoopback(draft, owned, new Set());
  const networks = new Map(
    [...wanted.clusterNets, ...owned.formerClusterNets].map((network) => [network.text, network]),
  );
  // The guard last: nothing else keeps packets from another way out.
  for (const network of networks.values()) {
    if (wanted.keptByOthers?.has(network.text) === true) continue;
    if (isRoutedElsewhere(draft.seen, network, wanted.interfaceName)) continue;
    for (const step of removals(draft.seen, network).toReversed()) draft.take(step);
  }
  return { steps: draft.steps, problems, roaming: draft.roaming, after: draft.seen };
}

/** Steps so far, and what will be seen once they are done. */
class Draft {
  readonly wanted: WantedHost;
  readonly steps: Step[] = [];
  readonly roaming: PublicKey[] = [];
  seen: SeenHost;

  constructor(wanted: WantedHost, seen: SeenHost) {
    this.wanted = wanted;
    this.seen = seen;
  }

  take(step: Step): void {
    this.steps.push(step);
    this.seen = foldStep(this.seen, step, this.wanted);
  }
}

/** Ours by C4.11, an interface without any key left aside. */
function isOurs(
  link: SeenInterface,
  seen: SeenHost,
  publicKey: PublicKey | undefined,
  { ourKeys }: Pick<Owned, "ourKeys">,
): boolean {
  if (link.publicKey !== undefined && (link.publicKey === publicKey || ourKeys.has(link.publicKey))) {
    return true;
  }
  return (
    link.group === linkGroup &&
    seen.routes.some((route) => route.device === link.name && route.protocol === routeProtocol)
  );
}

/** Ours too: an interface that was being made when this program was killed has no key yet. */
function isBegun(link: SeenInterface, { begunInterface }: Pick<Owned, "begunInterface">): boolean {
  return link.publicKey === undefined && link.name === begunInterface;
}

/** `interface-foreign` when a link that is not ours has our name. Without a key of our own only the others count. */
export function foreignInterface(
  wanted: Pick<WantedHost, "interfaceName"> & Partial<Pick<WantedHost, "publicKey">>,
  seen: SeenHost,
  owned: Pick<Owned, "ourKeys">,
): Problem | undefined {
  const link = seen.interface;
  if (seen.foreignLink !== undefined) return foreignProblem(wanted.interfaceName, seen);
  // A link of another name that is not ours is nobody's business here.
  if (link === undefined || link.name !== wanted.interfaceName) return undefined;
  if (link.publicKey === undefined || isOurs(link, seen, wanted.publicKey, owned)) return undefined;
  return foreignProblem(wanted.interfaceName, seen);
}

function foreignProblem(name: string, seen: SeenHost): Problem {
  const key = seen.interface?.publicKey;
  const found =
    seen.foreignLink !== undefined
      ? `a link of this name is there that is not WireGuard (${seen.foreignLink})`
      : `a WireGuard interface of this name is there with ${key === undefined ? "no key" : `the key ${key}`}, which is none of ours`;
  return {
    kind: "interface-foreign",
    message: `Cannot use interface ${quote(name)}: ${found}; it is left alone (to remove it: ip link delete dev ${name})`,
  };
}

function planGuard(draft: Draft, network: Prefix): void {
  if (!routesOf(draft.seen, network).some(isGuard)) draft.take({ kind: "add-guard", network });
}

/** Whether a route of ours for a former ClusterNet, which this one is a part of, leads into the interface. */
function isInsideFormer(network: Prefix, seen: SeenHost, { formerClusterNets }: Remembered): boolean {
  return formerClusterNets.some(
    (former) =>
      containsPrefix(former, network) &&
      routesOf(seen, former).some((route) => route.protocol === routeProtocol && !isGuard(route)),
  );
}

function isGuard(route: SeenRoute): boolean {
  return route.type === "unreachable" && route.protocol === routeProtocol && route.metric === guardMetric;
}

/**
 * Networks inside one of these that have a guard of ours and that nobody wants here: an earlier run left it and could not
 * remember it, or another agent keeps it.
 */
export function strayNetworks(seen: SeenHost, clusterNets: readonly Prefix[]): readonly Prefix[] {
  const wanted = new Set(clusterNets.map((network) => network.text));
  return seen.routes.flatMap((route) => {
    const { network } = route;
    const isStray = isGuard(route) && !wanted.has(network.text);
    return isStray && clusterNets.some((outer) => containsPrefix(outer, network)) ? [network] : [];
  });
}

function routesOf(seen: SeenHost, network: Prefix): readonly SeenRoute[] {
  return seen.routes.filter((route) => route.network.text === network.text);
}

function planInterface(draft: Draft, remembered: Remembered): void {
  const { wanted } = draft;
  const name = wanted.interfaceName;
  const before = draft.seen.interface;
  if (before !== undefined && before.name !== name) {
    if (isRenamed(before, draft, remembered))
      draft.take({ kind: "rename-link", from: before.name, to: name });
  }
  if (draft.seen.interface?.name !== name) draft.take({ kind: "add-link", name, mtu: wanted.mtu });
  const link = linkOf(draft);
  const settings = {
    ...(link.group !== linkGroup ? { group: linkGroup } : {}),
    ...(link.mtu !== wanted.mtu ? { mtu: wanted.mtu } : {}),
  };
  if (Object.keys(settings).length > 0) draft.take({ kind: "set-link", name, ...settings });
  planDevice(draft, remembered);
  if (!linkOf(draft).up) draft.take({ kind: "set-link", name, up: true });
}

/** A link of another name is named back only when it has our key: its index alone may have been given anew. */
function isRenamed(link: SeenInterface, { wanted }: Draft, { ourKeys }: Pick<Owned, "ourKeys">): boolean {
  return link.publicKey !== undefined && (link.publicKey === wanted.publicKey || ourKeys.has(link.publicKey));
}

function linkOf(draft: Draft): SeenInterface {
  const link = draft.seen.interface;
  if (link === undefined) throw new Error("a plan for the interface begins with the link");
  return link;
}

/**
 * Key, port and peers. `wg syncconf` touches every peer and resets a fwmark that somebody set, so it is left to a
 * fresh interface, where it is one call for all; everything else is said with `wg set`.
 */
function planDevice(draft: Draft, remembered: Remembered): void {
  const { wanted } = draft;
  const name = wanted.interfaceName;
  const link = linkOf(draft);
  const fresh = link.peers.size === 0 && link.fwmark === 0 && wanted.peers.length > 0;
  if (fresh && wanted.configWritten === true) {
    draft.take({ kind: "sync-conf", name });
    return;
  }
  const key = link.publicKey !== wanted.publicKey;
  const port = link.listenPort !== wanted.listenPort;
  if (key || port) {
    draft.take({
      kind: "set-device",
      name,
      key,
      ...(port ? { listenPort: wanted.listenPort } : {}),
    });
  }
  const changes = planPeers(draft, link, remembered);
  if (changes.length > 0) draft.take({ kind: "set-peers", name, changes });
}

/** Removals first, so that a prefix is given up before another peer takes it. */
function planPeers({ wanted, roaming }: Draft, link: SeenInterface, remembered: Remembered): PeerChange[] {
  const { held, unsure = nobody } = remembered;
  const compared =
    held !== undefined && isComparable(held, wanted) ? differing(held, wanted, unsure) : undefined;
  const changes: PeerChange[] = [];
  let there = 0;
  for (const peer of compared?.peers ?? wanted.peers) {
    const seen = link.peers.get(peer.publicKey);
    if (seen !== undefined) there++;
    const announced = announcedEndpoint(peer, wanted.listenPort);
    const change = planPeer(peer, seen, announced, remembered.endpoints, wanted.keepaliveSeconds ?? 0);
    if (change !== undefined) changes.push(change);
    const isRight = announced === undefined || announced === seen?.endpoint;
    if (!isRight && change?.endpoint === undefined) roaming.push(peer.publicKey);
  }
  const unwanted =
    compared?.unwanted ?? (there === link.peers.size ? [] : unwantedPeers(wanted, link, remembered));
  const removals = unwanted
    .filter((publicKey) => link.peers.has(publicKey))
    .map((publicKey): PeerChange => ({ publicKey, remove: true }));
  return removals.length === 0 ? changes : [...removals, ...changes];
}

const nobody: ReadonlySet<PublicKey> = new Set();

function unwantedPeers(wanted: WantedHost, link: SeenInterface, { formerPeers }: Remembered): PublicKey[] {
  const wantedKeys = new Set(wanted.peers.map((peer) => peer.publicKey));
  // An unknown peer that stays keeps what no wanted peer has: WireGuard takes an equal prefix from it by itself.
  return [...link.peers.keys()].filter(
    (publicKey) => !wantedKeys.has(publicKey) && (wanted.exact || formerPeers.has(publicKey)),
  );
}

/** True when what was planned for a peer then is what would be planned for it now. */
function isComparable(held: WantedHost, wanted: WantedHost): boolean {
  return (
    held.interfaceName === wanted.interfaceName &&
    held.publicKey === wanted.publicKey &&
    held.listenPort === wanted.listenPort &&
    held.keepaliveSeconds === wanted.keepaliveSeconds &&
    (held.exact || !wanted.exact)
  );
}

/** Peers that are wanted otherwise than those that the interface holds, or are unsure; and keys that are wanted no more. */
function differing(
  held: WantedHost,
  wanted: WantedHost,
  unsure: ReadonlySet<PublicKey>,
): { readonly unwanted: readonly PublicKey[]; readonly peers: readonly Peer[] } {
  const changes = diffMeshes(held, wanted);
  const other = new Set(changes.flatMap(({ kind, peer }) => (kind === "removed" ? [] : [peer])));
  const peers =
    unsure.size === 0
      ? [...other]
      : wanted.peers.filter((peer) => unsure.has(peer.publicKey) || other.has(peer));
  const keys = new Set(peers.map(({ publicKey }) => publicKey));
  const unwanted = new Set(
    changes.flatMap((change) => {
      const { publicKey } = change.kind === "changed" ? change.before : change.peer;
      return change.kind === "added" || keys.has(publicKey) ? [] : [publicKey];
    }),
  );
  if (wanted.exact) for (const publicKey of unsure) if (!keys.has(publicKey)) unwanted.add(publicKey);
  return { unwanted: [...unwanted], peers };
}

type PeerChangeDraft = { -readonly [Name in keyof PeerChange]: PeerChange[Name] };

function planPeer(
  peer: Peer,
  seen: SeenPeer | undefined,
  announced: string | undefined,
  memory: EndpointMemory,
  keepaliveSeconds: number,
): PeerChange | undefined {
  const { publicKey } = peer;
  const endpoint = planEndpoint(peer, seen, announced, memory);
  // Nearly every peer of a reading.
  if (seen !== undefined && endpoint === undefined && isAsWanted(peer, seen, keepaliveSeconds))
    return undefined;
  // Put together step by step: of a thousand peers the copies of a literal with optional parts are most of the plan.
  const change: PeerChangeDraft = { publicKey };
  if (endpoint !== undefined) change.endpoint = endpoint;
  planAllowedIps(change, peer, seen);
  if (keepaliveSeconds !== (seen?.keepaliveSeconds ?? 0)) change.keepaliveSeconds = keepaliveSeconds;
  if (seen?.hasPresharedKey === true) change.clearPresharedKey = true;
  return seen !== undefined && Object.keys(change).length === 1 ? undefined : change;
}

/** True when all but the endpoint is as wanted. Says false of a peer with many prefixes, which is looked at more closely. */
function isAsWanted({ prefixes }: Peer, seen: SeenPeer, keepaliveSeconds: number): boolean {
  return (
    keepaliveSeconds === (seen.keepaliveSeconds ?? 0) &&
    !seen.hasPresharedKey &&
    prefixes.length === seen.allowedIps.length &&
    prefixes.length <= fewPrefixes &&
    prefixes.every(({ text }) => seen.allowedIps.includes(text))
  );
}

/** Puts the prefixes into the change where they differ. */
function planAllowedIps(change: PeerChangeDraft, peer: Peer, seen: SeenPeer | undefined): void {
  const allowedIps = peer.prefixes.map((prefix) => prefix.text);
  if (seen === undefined) {
    change.allowedIps = allowedIps;
    return;
  }
  const there = seen.allowedIps.length > fewPrefixes ? new Set(seen.allowedIps) : undefined;
  const added = allowedIps.filter((text) => !(there?.has(text) ?? seen.allowedIps.includes(text)));
  const areAllKept = allowedIps.length - added.length === seen.allowedIps.length;
  if (areAllKept && added.length === 0) return;
  change.allowedIps = allowedIps;
  if (areAllKept) change.addAllowedIps = added;
}

/** Nothing came from a peer for so long that a session would have been made anew meanwhile, were it reachable (C4.6). */
export const quietLimitMs = 275_000;
/** A handshake within this time is a living session: WireGuard itself gives one up after 180 s. */
const handshakeLimitSeconds = 180;

/**
 * The endpoint to set, or undefined to leave the one there alone (C4.6). One that is there while none is announced is
 * left too: a peer behind NAT has no other, and WireGuard can only take it away together with the session.
 */
function planEndpoint(
  peer: Peer,
  seen: SeenPeer | undefined,
  announced: string | undefined,
  memory: EndpointMemory,
): string | undefined {
  if (announced === undefined || announced === seen?.endpoint) return undefined;
  if (seen?.endpoint === undefined) return announced;
  const before = memory.announced(peer);
  if (before !== undefined && before !== announced) return announced;
  if (memory.tried.get(peer.publicKey)?.has(seen.endpoint) === true) return announced;
  if ((memory.quietMs.get(peer.publicKey) ?? 0) >= quietLimitMs) return announced;
  const judgedByHandshake = memory.starting || before === undefined;
  const age = memory.nowSeconds - seen.latestHandshakeSeconds;
  return judgedByHandshake && age > handshakeLimitSeconds ? announced : undefined;
}

/** The route of one network into the interface; a problem when somebody else's is in its place. */
function planRoute(draft: Draft, network: Prefix, present: ReadonlySet<string>): Problem | undefined {
  const { wanted } = draft;
  const metric = routeMetric(network.family);
  const routes = routesOf(draft.seen, network);
  const foreign = routes.find((route) => route.protocol !== routeProtocol && route.metric <= metric);
  if (foreign !== undefined) return foreignRoute(wanted.interfaceName, foreign);
  const src = wanted.loopbackAddresses.find((address) => address.family === network.family);
  const ours = routes.filter((route) => route.protocol === routeProtocol && !isGuard(route));
  const [inPlace, ...doubles] = ours.filter((route) => route.metric === metric);
  for (const route of [...doubles, ...ours.filter((route) => route.metric !== metric)]) {
    draft.take(deletion(network, route));
  }
  const right =
    inPlace !== undefined &&
    inPlace.type === "unicast" &&
    inPlace.device === wanted.interfaceName &&
    inPlace.src === src?.text &&
    (src === undefined || present.has(src.text) || network.family === 4);
  if (right) return undefined;
  draft.take({
    kind: "set-route",
    network,
    device: wanted.interfaceName,
    ...(src === undefined ? {} : { src }),
    replace: inPlace !== undefined,
  });
  return undefined;
}

function deletion(network: Prefix, { device, metric }: SeenRoute): Step {
  return { kind: "delete-route", network, metric, ...(device === undefined ? {} : { device }) };
}

function foreignRoute(name: string, route: SeenRoute): Problem {
  const via = route.device === undefined ? "" : ` dev ${route.device}`;
  const version = route.network.family === 6 ? "ip -6" : "ip";
  return {
    kind: "route-foreign",
    message:
      `Cannot route ${route.network.text} into ${quote(name)}: a route of protocol ${route.protocol} with metric ${route.metric}` +
      `${via} is there; it is left alone (to remove it: ${version} route delete ${route.network.text}${via} proto ${route.protocol})`,
  };
}

function removeLoopback(
  draft: Draft,
  { addedLoopback }: Pick<Owned, "addedLoopback">,
  keep: ReadonlySet<string>,
): void {
  for (const text of draft.seen.loopback) {
    if (addedLoopback.has(text) && !keep.has(text)) {
      draft.take({ kind: "remove-loopback", address: parseAddress(text) });
    }
  }
}

/** Whether an agent with another interface routes the network: route and guard are its own then. */
export function isRoutedElsewhere(seen: SeenHost, network: Prefix, interfaceName: string): boolean {
  return routesOf(seen, network).some(
    (route) =>
      route.protocol === routeProtocol && route.device !== undefined && route.device !== interfaceName,
  );
}

/** What takes every route of ours for a network away, its guard first. */
function removals(seen: SeenHost, network: Prefix): Step[] {
  const ours = routesOf(seen, network).filter((route) => route.protocol === routeProtocol);
  return [
    ...(ours.some(isGuard) ? [{ kind: "delete-guard", network } as const] : []),
    ...ours.filter((route) => !isGuard(route)).map((route) => deletion(network, route)),
  ];
}
