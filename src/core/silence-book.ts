/**
 * The book of silence: for how long nothing has come from a peer (C4.6), by its received bytes in one reading after the
 * other. Peers whose bytes have stood still for equally long cost nothing: of 10,000 new ones there is no map.
 */
import type { SeenPeer } from "./host-state.ts";
import type { PublicKey } from "./key.ts";

export class SilenceBook {
  /** Since when the bytes of peers stand still: of those that are not in the map since `#allSinceMs`. */
  readonly #sinceMs = new Map<PublicKey, number>();
  #allSinceMs = 0;
  #nowMs = 0;

  /** For how many milliseconds the bytes of the peer stood still when they were last read. */
  get(publicKey: PublicKey): number {
    return this.#nowMs - (this.#sinceMs.get(publicKey) ?? this.#allSinceMs);
  }

  /**
   * Notes a reading. `changed`: all that show otherwise than in the reading `before`; without either all begin anew.
   */
  note(
    peers: ReadonlyMap<PublicKey, SeenPeer>,
    before: ReadonlyMap<PublicKey, SeenPeer> | undefined,
    changed: readonly PublicKey[] | undefined,
    nowMs: number,
  ): void {
    this.#nowMs = nowMs;
    if (before === undefined || changed === undefined) {
      this.#sinceMs.clear();
      this.#allSinceMs = nowMs;
      return;
    }
    // As after the first apply: only the others are noted one by one.
    const areMostNew = 2 * changed.filter((publicKey) => !before.has(publicKey)).length > peers.size;
    if (areMostNew) {
      for (const publicKey of before.keys()) {
        this.#sinceMs.set(publicKey, this.#sinceMs.get(publicKey) ?? this.#allSinceMs);
      }
      this.#allSinceMs = nowMs;
    }
    for (const publicKey of changed) {
      const [peer, old] = [peers.get(publicKey), before.get(publicKey)];
      if (peer === undefined) this.#sinceMs.delete(publicKey);
      else if (old === undefined && areMostNew) continue;
      else if (peer.receivedBytes !== old?.receivedBytes) this.#sinceMs.set(publicKey, nowMs);
    }
  }
}
