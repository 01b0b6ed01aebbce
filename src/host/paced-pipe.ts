/**
 * What a program writes, taken in few large pieces.
 *
 * `wg` shows 10,000 peers in 330 writes of 4 kB, and each of them would wake this process while the next one is being made:
 * 5 ms of processor for a dump that is copied in one. So it writes into a pipe with room for a megabyte, which is looked
 * into every few milliseconds, and once more when it has ended. Read with `read` and not as a stream of Bun's, which would
 * wake at each write whatever the room.
 */
import { closeSync, readSync } from "node:fs";
import { giveWay } from "../async.ts";
import { isSystemError } from "../errors.ts";
import type { Libc } from "./libc.ts";

const O_CLOEXEC = 0o2000000;
const O_NONBLOCK = 0o4000;
const F_SETFL = 4;
const F_SETPIPE_SZ = 1031;
const EMFILE = 24;

/** As much as everybody may have; where the kernel allows less, a program that writes more waits a little. */
const roomBytes = 1024 * 1024;
const pieceBytes = 256 * 1024;
const pauseMs = 8;

export class PacedPipe implements Disposable {
  /** The descriptor that a program is to write to; to be closed by `closeWriter` once it has been started. */
  readonly writer: number;
  readonly #reader: number;
  #isWriterOpen = true;
  #isOpen = true;

  /** Throws when this process has too many files open. */
  constructor(libc: Pick<Libc, "pipe2" | "fcntl">) {
    const ends = libc.pipe2(O_CLOEXEC);
    if (typeof ends === "number") {
      throw new Error(ends === EMFILE ? "EMFILE: too many open files" : `no pipe: errno ${ends}`);
    }
    [this.#reader, this.writer] = ends;
    // Of this end alone: what the program writes may wait.
    libc.fcntl(this.#reader, F_SETFL, O_NONBLOCK);
    libc.fcntl(this.writer, F_SETPIPE_SZ, roomBytes);
  }

  /** Without it there is no end to what comes. */
  closeWriter(): void {
    if (this.#isWriterOpen) closeSync(this.writer);
    this.#isWriterOpen = false;
  }

  /**
   * Hands on what comes until nobody has the other end any more or this pipe is disposed of; a piece is overwritten after
   * the call. When `ended` resolves what is left is taken at once. Throws what `onPiece` throws.
   */
  async read(onPiece: (piece: Uint8Array) => void, ended: Promise<unknown>): Promise<void> {
    const buffer = Buffer.allocUnsafe(pieceBytes);
    let hasEnded = false;
    const end = (async () => {
      await ended;
      hasEnded = true;
    })();
    while (this.#isOpen) {
      const length = this.#take(buffer);
      if (length === 0) return;
      if (length !== undefined) onPiece(buffer.subarray(0, length));
      const isMoreThere = length === buffer.length || (hasEnded && length !== undefined);
      if (isMoreThere) await giveWay();
      else if (hasEnded) await Bun.sleep(pauseMs);
      else await Promise.race([Bun.sleep(pauseMs), end]);
    }
  }

  /** How much there was; undefined: nothing yet, 0: nothing any more. */
  #take(buffer: Buffer): number | undefined {
    try {
      return readSync(this.#reader, buffer);
    } catch (error) {
      if (isSystemError(error, "EAGAIN")) return undefined;
      throw error;
    }
  }

  [Symbol.dispose](): void {
    this.closeWriter();
    if (this.#isOpen) closeSync(this.#reader);
    this.#isOpen = false;
  }
}
