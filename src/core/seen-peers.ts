/**
 * The peers of an interface as they are seen, and as they will be after changes; itself it never changes.
 *
 * WireGuard gives a prefix to the last peer that is set with it, and whoever had it loses it without a word. So it is
 * known who has which prefix, and a change of one peer costs that peer, however many there are.
 */
import type { PeerChange, SeenPeer } from "./host-state.ts";
import type { PublicKey } from "./key.ts";
import { SharedMap } from "./shared-map.ts";

const newPeer: SeenPeer = {
  allowedIps: [],
  latestHandshakeSeconds: 0,
  receivedBytes: 0,
  sentBytes: 0,
  hasPresharedKey: false,
};

export class SeenPeers implements ReadonlyMap<PublicKey, SeenPeer> {
  readonly #peers: SharedMap<PublicKey, SeenPeer>;
  /** Who has a prefix, by its text; made when it is first asked for. */
  #owners: SharedMap<string, PublicKey> | undefined;

  private constructor(peers: SharedMap<PublicKey, SeenPeer>, owners?: SharedMap<string, PublicKey>) {
    this.#peers = peers;
    this.#owners = owners;
  }

  /** Takes the map over: nobody may change it from now on. */
  static of(peers: ReadonlyMap<PublicKey, SeenPeer>): SeenPeers {
    return peers instanceof SeenPeers ? peers : new SeenPeers(SharedMap.of(peers));
  }

  /** Notes who has which prefix, which takes as long as there are peers: so that no change has to wait for it. */
  prepare(): this {
    this.#ownersNow();
    return this;
  }

  /** The peers when these show as they are given, and those that are gone are not there. */
  renew(shown: ReadonlyMap<PublicKey, SeenPeer>, gone: Iterable<PublicKey>): SeenPeers {
    const peers = this.#peers.edit();
    // Peers that have shaken hands or sent something keep their prefixes: who has which need not be looked at.
    const moved = [...shown].filter(
      ([publicKey, { allowedIps }]) => peers.get(publicKey)?.allowedIps !== allowedIps,
    );
    const owners = this.#ownersNow().edit();
    const release = (publicKey: PublicKey): void => {
      for (const text of peers.get(publicKey)?.allowedIps ?? []) {
        if (owners.get(text) === publicKey) owners.delete(text);
      }
    };
    for (const publicKey of gone) {
      release(publicKey);
      peers.delete(publicKey);
    }
    for (const [publicKey] of moved) release(publicKey);
    for (const [publicKey, peer] of shown) peers.set(publicKey, peer);
    for (const [publicKey, { allowedIps }] of moved) {
      for (const text of allowedIps) owners.set(text, publicKey);
    }
    const renewed = peers.finish();
    return renewed === this.#peers ? this : new SeenPeers(renewed, owners.finish());
  }

  /** The peers after these changes, done in order. */
  fold(changes: readonly PeerChange[]): SeenPeers {
    const peers = this.#peers.edit();
    const owners = this.#ownersNow().edit();
    for (const change of changes) {
      const { publicKey } = change;
      const before = peers.get(publicKey);
      const kept = new Set(change.remove === true ? [] : (change.allowedIps ?? before?.allowedIps));
      for (const text of before?.allowedIps ?? []) if (!kept.has(text)) owners.delete(text);
      if (change.remove === true) {
        peers.delete(publicKey);
        continue;
      }
      peers.set(publicKey, foldPeer(before ?? newPeer, change));
      for (const text of change.allowedIps ?? []) {
        const owner = owners.get(text);
        const loser = owner === undefined || owner === publicKey ? undefined : peers.get(owner);
        if (owner !== undefined && loser !== undefined) {
          peers.set(owner, { ...loser, allowedIps: loser.allowedIps.filter((each) => each !== text) });
        }
        owners.set(text, publicKey);
      }
    }
    return new SeenPeers(peers.finish(), owners.finish());
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

  #ownersNow(): SharedMap<string, PublicKey> {
    if (this.#owners === undefined) {
      const owners = new Map<string, PublicKey>();
      for (const [publicKey, { allowedIps }] of this.#peers) {
        for (const text of allowedIps) owners.set(text, publicKey);
      }
      this.#owners = SharedMap.of(owners);
    }
    return this.#owners;
  }
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
