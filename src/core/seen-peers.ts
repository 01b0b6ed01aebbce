/**
 * The peers of an interface as they are seen, and as they will be after changes; itself it never changes.
 *
 * WireGuard gives a prefix to the last peer that is set with it, and whoever had it loses it without a word. A change of
 * one peer costs that peer, however many there are, unless there may be some that nobody wants.
 *
 * What they will be after changes is found out when somebody asks for it: most changes are done before that.
 */
import type { PeerChange, SeenPeer } from "./host-state.ts";
import type { PublicKey } from "./key.ts";
import { SharedMap, type MapDraft } from "./shared-map.ts";

const newPeer: SeenPeer = {
  allowedIps: [],
  latestHandshakeSeconds: 0,
  receivedBytes: 0,
  sentBytes: 0,
  hasPresharedKey: false,
};

const nobody: SharedMap<PublicKey, SeenPeer> = SharedMap.of(new Map());

export class SeenPeers implements ReadonlyMap<PublicKey, SeenPeer> {
  #made: SharedMap<PublicKey, SeenPeer> | undefined;
  /** Lets go of what it is made from once it is made. */
  #make: (() => SharedMap<PublicKey, SeenPeer>) | undefined;

  private constructor(make: () => SharedMap<PublicKey, SeenPeer>) {
    this.#make = make;
  }

  get #peers(): SharedMap<PublicKey, SeenPeer> {
    if (this.#make !== undefined) {
      this.#made = this.#make();
      this.#make = undefined;
    }
    return this.#made ?? nobody;
  }

  /** Takes the map over: nobody may change it from now on. */
  static of(peers: ReadonlyMap<PublicKey, SeenPeer>): SeenPeers {
    return peers instanceof SeenPeers ? peers : new SeenPeers(() => SharedMap.of(peers));
  }

  /** The peers of an interface that has been given these alone, no two of which have a prefix in common. */
  static ofMesh(peers: readonly PeerChange[]): SeenPeers {
    return new SeenPeers(() =>
      SharedMap.of(new Map(peers.map((peer) => [peer.publicKey, foldPeer(newPeer, peer)]))),
    );
  }

  /** The peers when these show as they are given. */
  renew(shown: ReadonlyMap<PublicKey, SeenPeer>): SeenPeers {
    const peers = this.#peers.edit();
    for (const [publicKey, peer] of shown) peers.set(publicKey, peer);
    const renewed = peers.finish();
    return renewed === this.#peers ? this : SeenPeers.of(renewed);
  }

  /**
   * The peers after these changes, done in order. When there are `allWanted` then, they are the wanted ones alone: then
   * nobody but those in `changes` has what is given to one of them, and nobody else is looked at.
   */
  fold(changes: readonly PeerChange[], allWanted?: number): SeenPeers {
    return new SeenPeers(() => this.#fold(changes, allWanted));
  }

  #fold(changes: readonly PeerChange[], allWanted: number | undefined): SharedMap<PublicKey, SeenPeer> {
    const peers = this.#peers.edit();
    /** Who has what was given to somebody. */
    const owners = new Map<string, PublicKey>();
    let isGiven = false;
    for (const change of changes) {
      const { publicKey, allowedIps = [] } = change;
      if (change.remove === true) {
        peers.delete(publicKey);
        continue;
      }
      const before = peers.get(publicKey) ?? newPeer;
      const had = new Set(allowedIps.length === 0 ? [] : before.allowedIps);
      for (const text of allowedIps) {
        owners.set(text, publicKey);
        isGiven ||= !had.has(text);
      }
      peers.set(publicKey, foldPeer(before, change));
    }
    if (isGiven) {
      const changed = changes.map(({ publicKey }) => publicKey);
      const mayLose = peers.size === allWanted ? changed : [...this.#peers.keys(), ...changed];
      for (const publicKey of mayLose) takeGiven(peers, publicKey, owners);
    }
    return peers.finish();
  }

  get size(): number {
    return this.#peers.size;
  }

  get(publicKey: PublicKey): SeenPeer | undefined {
    return this.#peers.get(publicKey);
  }

  has(publicKey: PublicKey): boolean {
    return this.#peers.has(publicKey);
  }

  entries(): MapIterator<[PublicKey, SeenPeer]> {
    return this.#peers.entries();
  }

  keys(): MapIterator<PublicKey> {
    return this.#peers.keys();
  }

  values(): MapIterator<SeenPeer> {
    return this.#peers.values();
  }

  [Symbol.iterator](): MapIterator<[PublicKey, SeenPeer]> {
    return this.#peers.entries();
  }

  forEach(use: (peer: SeenPeer, publicKey: PublicKey, map: ReadonlyMap<PublicKey, SeenPeer>) => void): void {
    for (const [publicKey, peer] of this.#peers) use(peer, publicKey, this);
  }
}

/** Takes from a peer what was given to others. */
function takeGiven(
  peers: MapDraft<PublicKey, SeenPeer>,
  publicKey: PublicKey,
  owners: ReadonlyMap<string, PublicKey>,
): void {
  const peer = peers.get(publicKey);
  const isLost = (text: string): boolean => (owners.get(text) ?? publicKey) !== publicKey;
  if (peer?.allowedIps.some(isLost) !== true) return;
  peers.set(publicKey, { ...peer, allowedIps: peer.allowedIps.filter((text) => !isLost(text)) });
}

function foldPeer(peer: SeenPeer, change: PeerChange): SeenPeer {
  const { keepaliveSeconds: keepaliveBefore, ...rest } = peer;
  const keepaliveSeconds = change.keepaliveSeconds ?? keepaliveBefore ?? 0;
  return {
    ...rest,
    ...(change.endpoint === undefined ? {} : { endpoint: change.endpoint }),
    ...(change.allowedIps === undefined ? {} : { allowedIps: [...change.allowedIps].toSorted() }),
    ...(keepaliveSeconds === 0 ? {} : { keepaliveSeconds }),
    ...(change.clearPresharedKey === true ? { hasPresharedKey: false } : {}),
  };
}
