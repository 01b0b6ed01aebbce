/**
 * What a host is wanted to show, what it shows, and the steps between the two: the words of the host plan.
 *
 * Types and the numbers by which ours is told from others' alone; core/host-plan.ts makes steps, core/host-fold.ts
 * says what they leave behind, core/host-commands.ts what commands they are.
 */
import type { PublicKey } from "./key.ts";
import type { Peer } from "./mesh.ts";
import type { Address, Family, Prefix } from "./prefix.ts";

/** Link group of the mesh interface: Metropolis' firewall knows the mesh by it. */
export const linkGroup = 9;
/** Routing protocol number of our routes. */
export const routeProtocol = 129;
/** Metric of the guard: the worst there is, so that any real route wins. */
export const guardMetric = 4294967295;

/**
 * Metric of our route: the kernel's own default for a route that names none, which is also what anybody else's
 * route for the same network gets who does not think about it. So the two meet and one is reported, where another
 * metric of ours would quietly win or lose.
 */
export function routeMetric(family: Family): number {
  return family === 4 ? 0 : 1024;
}

export interface WantedHost {
  readonly interfaceName: string;
  readonly publicKey: PublicKey;
  readonly listenPort: number;
  readonly mtu: number;
  readonly keepaliveSeconds?: number;
  readonly clusterNets: readonly Prefix[];
  /** Sorted by node ID. */
  readonly peers: readonly Peer[];
  /** Own loopback addresses, in order; the first of a family is the `src` of its route. */
  readonly loopbackAddresses: readonly Address[];
  /** Peers of the interface that are not wanted may be removed (C4.8). */
  readonly exact: boolean;
  /** The configuration file on disk holds exactly this mesh, key and port, so a first apply may hand it to `wg` whole. */
  readonly configWritten?: boolean;
}

export interface SeenPeer {
  /** As `wg` prints it, like 192.0.2.2:7838 or [2001:db8::2]:7838. */
  readonly endpoint?: string;
  /** Canonical texts, sorted. */
  readonly allowedIps: readonly string[];
  readonly latestHandshakeSeconds: number;
  readonly receivedBytes: number;
  readonly sentBytes: number;
  readonly keepaliveSeconds?: number;
  readonly hasPresharedKey: boolean;
}

export interface SeenInterface {
  readonly index: number;
  /** The name that it has now; another one than wanted when somebody renamed it. */
  readonly name: string;
  readonly implementation: "kernel" | "userspace";
  readonly group: number;
  readonly mtu: number;
  readonly up: boolean;
  /** Absent: the interface has no key yet. */
  readonly publicKey?: PublicKey;
  readonly listenPort: number;
  readonly fwmark: number;
  readonly peers: ReadonlyMap<PublicKey, SeenPeer>;
}

/** A route of the main table whose destination is exactly a network asked for, or one of our protocol inside of it. */
export interface SeenRoute {
  readonly network: Prefix;
  /** Route type: "unicast", "unreachable" … */
  readonly type: string;
  readonly device?: string;
  readonly protocol: number;
  readonly metric: number;
  readonly src?: string;
}

export interface SeenHost {
  /** Absent: no link of that name (nor, with its index, of another one). */
  readonly interface?: SeenInterface;
  /** What kind of link has our name without being WireGuard, like "bridge": left alone. */
  readonly foreignLink?: string;
  readonly routes: readonly SeenRoute[];
  /** Canonical texts of the addresses on `lo`, in the kernel's order. */
  readonly loopback: readonly string[];
  /** Canonical texts of every address of this host. */
  readonly addresses: ReadonlySet<string>;
}

/** What on a host is ours, by what is remembered of earlier runs. */
export interface Owned {
  /** Loopback addresses that this program added in this boot. */
  readonly addedLoopback: ReadonlySet<string>;
  /** Public keys that files of ours name; an interface that has one of them is ours (C4.11). */
  readonly ourKeys: ReadonlySet<PublicKey>;
  /** ClusterNets of earlier runs that are no longer wanted. */
  readonly formerClusterNets: readonly Prefix[];
  /** Name of the interface that this program has made, or was about to make when it was killed. */
  readonly begunInterface?: string;
}

/** What this program remembers of before: from the state file and from its own last runs. */
export interface Remembered extends Owned {
  /**
   * Keys of peers that this program itself wanted since it started. When one is no longer wanted, that was decided (a
   * tombstone, a changed key), so it goes even while a picture is not full; other unwanted peers then stay (C4.8).
   */
  readonly formerPeers: ReadonlySet<PublicKey>;
  /**
   * What was wanted when the interface was last brought to hold all of it. Peers that are still wanted so are not looked
   * at, but for those in `unsure`.
   */
  readonly held?: WantedHost;
  /** Peers that may show otherwise than `held` wanted them. */
  readonly unsure?: ReadonlySet<PublicKey>;
  /** What decides about endpoints (C4.6). */
  readonly endpoints: EndpointMemory;
}

/** What is known of some peers. */
type Lookup<T> = Pick<ReadonlyMap<PublicKey, T>, "get">;

/** Endpoint rule of C4.6: what was announced when the endpoint was set, and how long a peer has been silent. */
export interface EndpointMemory {
  /** The first comparison since this program started: silence is not known, so the last handshake decides. */
  readonly starting: boolean;
  /** The announced endpoint that was last set or found right for the key of this peer. */
  readonly announced: (peer: Peer) => string | undefined;
  /** Endpoints that a command which failed was to set, and may have set, by key. */
  readonly tried: Lookup<ReadonlySet<string>>;
  /** Milliseconds (monotonic) for which the received bytes of a peer stand still; absent: not known. */
  readonly quietMs: Lookup<number>;
  readonly nowSeconds: number;
}

/** What `wg set` changes of one peer. Fields left out stay as they are. */
export interface PeerChange {
  readonly publicKey: PublicKey;
  readonly remove?: true;
  readonly endpoint?: string;
  /** The whole list. */
  readonly allowedIps?: readonly string[];
  /**
   * What `allowedIps` adds to the list that is there, given when it takes nothing away: added with `+` where `wg`
   * knows it, so the prefixes that stay are not taken out for an instant. Taking away is always done with the whole
   * list: `-` needs Linux 6.16, and an older kernel gives no error that could be told from others.
   */
  readonly addAllowedIps?: readonly string[];
  /** 0 turns it off. */
  readonly keepaliveSeconds?: number;
  readonly clearPresharedKey?: true;
}

export type Step =
  | { readonly kind: "add-link"; readonly name: string; readonly mtu: number }
  | { readonly kind: "rename-link"; readonly from: string; readonly to: string }
  | { readonly kind: "delete-link"; readonly name: string }
  | {
      readonly kind: "set-link";
      readonly name: string;
      readonly group?: number;
      readonly mtu?: number;
      readonly up?: boolean;
    }
  /** Key from the key file and port, by `wg set`. */
  | {
      readonly kind: "set-device";
      readonly name: string;
      readonly key: boolean;
      readonly listenPort?: number;
    }
  /** The first apply: the file as a whole. */
  | { readonly kind: "sync-conf"; readonly name: string }
  | { readonly kind: "set-peers"; readonly name: string; readonly changes: readonly PeerChange[] }
  | { readonly kind: "add-loopback"; readonly address: Address }
  | { readonly kind: "remove-loopback"; readonly address: Address }
  /** `replace`: the one there has protocol 129. */
  | {
      readonly kind: "set-route";
      readonly network: Prefix;
      readonly device: string;
      readonly src?: Address;
      readonly replace: boolean;
    }
  | {
      readonly kind: "delete-route";
      readonly network: Prefix;
      readonly device?: string;
      readonly metric: number;
    }
  | { readonly kind: "add-guard"; readonly network: Prefix }
  | { readonly kind: "delete-guard"; readonly network: Prefix };

/** The endpoint as `wg` writes it; undefined for a peer without usable address. */
export function announcedEndpoint(peer: Pick<Peer, "address">, port: number): string | undefined {
  if (peer.address === undefined) return undefined;
  return peer.address.family === 6 ? `[${peer.address.text}]:${port}` : `${peer.address.text}:${port}`;
}
