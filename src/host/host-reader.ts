/**
 * Readings of this host, one after the other, and what changed from one to the next.
 *
 * Of the peers only those are parsed that show otherwise than in the reading that was last noted, and their handshakes
 * are told by the time of day that is now. A reading is noted by the loop that applies alone, which makes one at a time:
 * what changes between two must be what changed since something was planned by the first. One for anybody else may
 * overtake it, so nothing of that is kept.
 */
import type { Clock } from "../async.ts";
import { HandshakeBook, type LookTime } from "../core/handshake-book.ts";
import type { SeenHost, SeenPeer } from "../core/host-state.ts";
import type { PublicKey } from "../core/key.ts";
import { SeenPeers } from "../core/seen-peers.ts";
import { SilenceBook } from "../core/silence-book.ts";
import { readHost, type ReadOptions } from "./read.ts";
import type { ReadDump } from "./wg-dump.ts";

/** The host, and of the peers of its interface what they are worth for the next reading. */
export interface Reading {
  /** With the handshakes as `wg` tells them. */
  readonly seen: SeenHost;
  /** When the interface was looked at, if there is one. */
  readonly look?: LookTime;
  readonly dump?: ReadDump;
  /** Peers that show otherwise than in the reading that was last noted; absent: any may. */
  readonly changed?: readonly PublicKey[];
}

export class HostReader {
  readonly #clock: Clock;
  /** Of the interface when it was last seen: it may be renamed. */
  #index: number | undefined;
  #lastDump: ReadDump | undefined;
  readonly #handshakes = new HandshakeBook();
  readonly #silence = new SilenceBook();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get index(): number | undefined {
    return this.#index;
  }

  /** Milliseconds for which nothing had come from a peer when the last reading was noted. */
  get quietMs(): Pick<SilenceBook, "get"> {
    return this.#silence;
  }

  async read(options: Omit<ReadOptions, "index" | "before" | "remember">): Promise<Reading> {
    let read: Omit<Reading, "seen"> = {};
    const seen = await readHost({
      ...options,
      ...(this.#index === undefined ? {} : { index: this.#index }),
      ...(this.#lastDump === undefined ? {} : { before: this.#lastDump }),
      remember: (dump, changed) => {
        read = changed === undefined ? { dump } : { dump, changed };
      },
    });
    if (seen.interface === undefined) return { seen };
    this.#index = seen.interface.index;
    const look = {
      nowMs: this.#clock.nowMs(),
      wallSeconds: this.#clock.wallTime().getTime() / 1_000,
      timeSetMs: this.#clock.timeSetMs(),
    };
    return { ...read, seen, look };
  }

  /** What a reading shows, without noting it. */
  tell({ seen, look }: Reading): SeenHost {
    return withPeers(seen, (peers) => (look === undefined ? peers : this.#handshakes.tell(peers, look)));
  }

  /** Notes what a reading shows otherwise than the one before. */
  note({ seen: read, look, dump, changed }: Reading): SeenHost {
    const seen = withPeers(read, (peers) =>
      // Ready to be changed peer by peer.
      SeenPeers.of(look === undefined ? peers : this.#handshakes.note(peers, look, changed)),
    );
    const peers = seen.interface?.peers ?? new Map<PublicKey, SeenPeer>();
    this.#silence.note(peers, this.#lastDump?.peers, changed, this.#clock.nowMs());
    this.#lastDump = dump;
    return seen;
  }

  /** All peers of the last reading have been looked at: from now on only those are that change. */
  forgetPeers(): void {
    this.#lastDump?.dumped.forget();
  }
}

type Peers = ReadonlyMap<PublicKey, SeenPeer>;

function withPeers(seen: SeenHost, change: (peers: Peers) => Peers): SeenHost {
  const { interface: link } = seen;
  return link === undefined ? seen : { ...seen, interface: { ...link, peers: change(link.peers) } };
}
