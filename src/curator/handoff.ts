/**
 * From several producers to one consumer, one thing at a time.
 *
 * Guarantees that a producer goes on only when the consumer has taken what it brought, so nothing piles up: a slow
 * consumer holds its producers, and through them whoever sends.
 */

/** Hands things from several producers to one consumer, one at a time. */
export class Handoff<T> {
  readonly #offered: { readonly item: T; readonly taken: () => void }[] = [];
  #closed = false;
  #wake: () => void = () => {};

  /** Resolves when the consumer has taken it, or nothing is taken any more. */
  put(item: T): Promise<void> {
    if (this.#closed) return Promise.resolve();
    return new Promise((taken) => {
      this.#offered.push({ item, taken });
      this.#wake();
    });
  }

  /** Nothing is taken from here on. */
  close(): void {
    this.#closed = true;
    for (const { taken } of this.#offered.splice(0)) taken();
    this.#wake();
  }

  /** Ends when it is closed. */
  async *items(): AsyncGenerator<T, void> {
    for (;;) {
      const next = this.#offered.shift();
      if (next !== undefined) {
        next.taken();
        yield next.item;
      } else if (this.#closed) {
        return;
      } else {
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
    }
  }
}
