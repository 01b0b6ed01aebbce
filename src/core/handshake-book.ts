/**
 * The book of handshakes, so that their ages hold when somebody sets the clock.
 *
 * `wg` tells the time of day at which a handshake was made, by the clock as it was then. When that is set by a day, a
 * session that works would seem a day old, or to come from the future. So the book keeps by how much the clock had been
 * set when each handshake was made, and tells it by the clock that is now.
 */
import type { SeenPeer } from "./host-state.ts";
import type { PublicKey } from "./key.ts";
import { SeenPeers } from "./seen-peers.ts";

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

interface KnownHandshake {
  readonly seconds: number;
  readonly timeSetMs: number;
}

export class HandshakeBook {
  readonly #known = new Map<PublicKey, KnownHandshake>();
  #last: LookTime | undefined;
  /** By how much at least and at most the clock had been set when any of the known ones was made. */
  #leastSetMs = Infinity;
  #mostSetMs = -Infinity;

  /**
   * Notes the peers of a reading and tells their handshakes by the time of day that is now; the same map while nobody has
   * set the clock. `changed`: all that may show otherwise than when last noted, if that is known. For one reader, whose
   * readings come one after the other.
   */
  note(
    peers: ReadonlyMap<PublicKey, SeenPeer>,
    look: LookTime,
    changed?: readonly PublicKey[],
  ): ReadonlyMap<PublicKey, SeenPeer> {
    for (const publicKey of changed ?? this.#known.keys()) {
      this.#noteOne(publicKey, peers.get(publicKey)?.latestHandshakeSeconds ?? 0, look);
    }
    if (changed === undefined) {
      for (const [publicKey, peer] of peers) this.#noteOne(publicKey, peer.latestHandshakeSeconds, look);
    }
    this.#last = look;
    if (!this.#mayDiffer(look)) return peers;
    this.#leastSetMs = Infinity;
    this.#mostSetMs = -Infinity;
    for (const { timeSetMs } of this.#known.values()) this.#widen(timeSetMs);
    return this.#tellThese(this.#known.keys(), peers, look);
  }

  /** Tells the handshakes of any other reading, which may be older or newer than what is noted, and notes nothing. */
  tell(peers: ReadonlyMap<PublicKey, SeenPeer>, look: LookTime): ReadonlyMap<PublicKey, SeenPeer> {
    return this.#mayDiffer(look) ? this.#tellThese(peers.keys(), peers, look) : peers;
  }

  #noteOne(publicKey: PublicKey, seconds: number, look: LookTime): void {
    if (this.#known.get(publicKey)?.seconds === seconds) return;
    if (seconds === 0) {
      this.#known.delete(publicKey);
      return;
    }
    const timeSetMs = this.#timeSetOf(publicKey, seconds, look);
    this.#known.set(publicKey, { seconds, timeSetMs });
    this.#widen(timeSetMs);
  }

  #widen(timeSetMs: number): void {
    this.#leastSetMs = Math.min(this.#leastSetMs, timeSetMs);
    this.#mostSetMs = Math.max(this.#mostSetMs, timeSetMs);
  }

  /** Whether the clock has been set since any handshake was made, as far as it is known or was last looked at. */
  #mayDiffer(look: LookTime): boolean {
    if (this.#known.size === 0 || this.#last === undefined) return false;
    return [this.#leastSetMs, this.#mostSetMs, this.#last.timeSetMs].some(
      (setMs) => setSeconds(look, setMs) !== 0,
    );
  }

  #tellThese(
    publicKeys: Iterable<PublicKey>,
    peers: ReadonlyMap<PublicKey, SeenPeer>,
    look: LookTime,
  ): ReadonlyMap<PublicKey, SeenPeer> {
    const told = new Map<PublicKey, SeenPeer>();
    for (const publicKey of publicKeys) {
      const peer = peers.get(publicKey);
      if (peer === undefined || peer.latestHandshakeSeconds === 0) continue;
      const seconds = peer.latestHandshakeSeconds;
      const bySeconds = setSeconds(look, this.#timeSetOf(publicKey, seconds, look));
      if (bySeconds !== 0) told.set(publicKey, { ...peer, latestHandshakeSeconds: seconds + bySeconds });
    }
    return told.size === 0 ? peers : SeenPeers.of(peers).renew(told);
  }

  /** By how much the clock had been set when the handshake of a peer was made. */
  #timeSetOf(publicKey: PublicKey, seconds: number, look: LookTime): number {
    const known = this.#known.get(publicKey);
    if (known === undefined) return look.timeSetMs;
    return known.seconds === seconds ? known.timeSetMs : this.#timeSetAt(seconds, look);
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

/** By how many seconds the clock has been set since it had been set by so much; 0: by none that is worth a word. */
function setSeconds(look: LookTime, timeSetMs: number): number {
  const seconds = Math.round((look.timeSetMs - timeSetMs) / 1_000);
  return Math.abs(seconds) < toleranceSeconds ? 0 : seconds;
}
