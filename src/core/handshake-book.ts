/**
 * The book of handshakes, so that their ages hold when somebody sets the clock.
 *
 * `wg` tells the time of day at which a handshake was made, by the clock as it was then. When that is set by a day, a
 * session that works would seem a day old, or to come from the future. So the book keeps by how much the clock had been
 * set when each handshake was made, and tells it by the clock that is now.
 */
import type { SeenPeer } from "./host-state.ts";
import type { PublicKey } from "./key.ts";

/** A clock that is only adjusted moves less between two handshakes; ages are told in seconds anyway. */
const toleranceSeconds = 2;

/** When the peers were looked at. */
export interface LookTime {
  /** By a clock that never jumps. */
  readonly nowMs: number;
  /** Time of day, in seconds since 1970. */
  readonly wallSeconds: number;
  /** By how much the time of day has been set by now (Clock). */
  readonly timeSetMs: number;
}

export class HandshakeBook {
  #known: ReadonlyMap<PublicKey, { readonly seconds: number; readonly timeSetMs: number }> = new Map();
  #last: LookTime | undefined;

  /** The peers with their handshakes by the time of day that is now; the same map while nobody has set the clock. */
  tell(peers: ReadonlyMap<PublicKey, SeenPeer>, look: LookTime): ReadonlyMap<PublicKey, SeenPeer> {
    const next = new Map<PublicKey, { readonly seconds: number; readonly timeSetMs: number }>();
    let told: Map<PublicKey, SeenPeer> | undefined;
    for (const [publicKey, peer] of peers) {
      const seconds = peer.latestHandshakeSeconds;
      if (seconds === 0) continue;
      const before = this.#known.get(publicKey);
      const known =
        before?.seconds === seconds
          ? before
          : { seconds, timeSetMs: before === undefined ? look.timeSetMs : this.#timeSetAt(seconds, look) };
      next.set(publicKey, known);
      const setSeconds = Math.round((look.timeSetMs - known.timeSetMs) / 1_000);
      if (Math.abs(setSeconds) < toleranceSeconds) continue;
      told ??= new Map(peers);
      told.set(publicKey, { ...peer, latestHandshakeSeconds: seconds + setSeconds });
    }
    this.#known = next;
    this.#last = look;
    return told ?? peers;
  }

  /** By how much the clock had been set when a handshake was made that came after the last look: before the step, or after it. */
  #timeSetAt(seconds: number, look: LookTime): number {
    if (this.#last === undefined) return look.timeSetMs;
    const sinceSeconds = (look.nowMs - this.#last.nowMs) / 1_000;
    const age = look.wallSeconds - seconds;
    const isPossible = age >= -toleranceSeconds && age <= sinceSeconds + toleranceSeconds;
    return isPossible ? look.timeSetMs : this.#last.timeSetMs;
  }
}
