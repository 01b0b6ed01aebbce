/**
 * The lines of a text that begin with a key each, kept as they came: what the next text is compared with.
 *
 * wireguard-go shows its peers in another order each time, so a line is looked for by its key. It is compared byte by
 * byte and no string is made of it: of 10,000 lines hardly any differs, and all of the others would be garbage.
 */

const newline = 10;
/** Bytes of a public key as it is written. */
export const keyLength = 44;
/** So much of a key tells nearly all of them apart. Six letters do too where keys are drawn by lot, but somebody may choose theirs. */
const hashedLength = 12;
const firstPlaces = 64;
const firstBytes = 16 * 1024;

/** What `next` has come to: no whole line; one whose key another line has; one that stands before just so, or does not. */
export type NextLine = "none" | "double" | "same" | "other";

export class KeyedLines {
  /** Filled with line ends, so that looking for one stops behind what has come. */
  #bytes: Buffer;
  /** So much of them has come. */
  #length = 0;
  /** Where the line that `next` has come to begins, and its end. */
  #from = 0;
  #to = -1;
  #count = 0;
  /** Where a line begins, plus one, in the place that the hash of its key names or the next free one; 0: a free place. */
  #places: Int32Array;
  #hashes: Int32Array;

  /** `like`: lines that were much the same, so that there is room enough at once. */
  constructor(like?: KeyedLines) {
    this.#bytes = Buffer.alloc(like === undefined ? firstBytes : like.#length, newline);
    this.#places = new Int32Array(like === undefined ? firstPlaces : like.#places.length);
    this.#hashes = new Int32Array(this.#places.length);
  }

  /** Number of lines so far. */
  get count(): number {
    return this.#count;
  }

  /** How much has come of a line whose end has not. */
  get restLength(): number {
    return this.#length - this.#to - 1;
  }

  push(piece: Uint8Array): void {
    const length = this.#length + piece.length;
    if (length > this.#bytes.length) {
      const larger = Buffer.alloc(Math.max(length, 2 * this.#bytes.length), newline);
      this.#bytes.copy(larger, 0, 0, this.#length);
      this.#bytes = larger;
    }
    this.#bytes.set(piece, this.#length);
    this.#length = length;
  }

  /** Goes on to the next line that is not empty. */
  next(before: KeyedLines | undefined): NextLine {
    do {
      const to = this.#bytes.indexOf(newline, this.#to + 1);
      if (to === -1 || to >= this.#length) return "none";
      this.#from = this.#to + 1;
      this.#to = to;
    } while (this.#from === this.#to);
    const [from, to] = [this.#from, this.#to];
    const hash = hashOf(this.#bytes, from, to);
    if (this.#find(this.#bytes, from, Math.min(to, from + keyLength), hash) !== undefined) return "double";
    if (4 * this.#count >= 3 * this.#places.length) this.#spread();
    this.#put(from, hash);
    this.#count++;
    // With its end, so that no longer line is the same.
    const isThere = before !== undefined && before.#find(this.#bytes, from, to + 1, hash) !== undefined;
    return isThere ? "same" : "other";
  }

  /** Gives back the room that was made for more lines. */
  fit(): this {
    if (this.#bytes.length > this.#length) this.#bytes = Buffer.from(this.#bytes.subarray(0, this.#length));
    return this;
  }

  /** The line that `next` has come to. */
  get text(): string {
    return this.#bytes.toString("latin1", this.#from, this.#to);
  }

  /** The key of that line, as a text of its own: a part of a text would keep all of it in memory. */
  get key(): string {
    return this.#bytes.toString("latin1", this.#from, Math.min(this.#to, this.#from + keyLength));
  }

  has(key: string): boolean {
    return this.#placeOf(key) !== undefined;
  }

  /** The line with this key. */
  lineOf(key: string): string | undefined {
    const from = this.#placeOf(key);
    return from === undefined
      ? undefined
      : this.#bytes.toString("latin1", from, this.#bytes.indexOf(newline, from));
  }

  /** Every line, in the order in which they came. */
  *all(): Generator<string, undefined> {
    for (let from = 0; from < this.#length;) {
      const to = this.#bytes.indexOf(newline, from);
      if (to === -1 || to >= this.#length) return undefined;
      if (to > from) yield this.#bytes.toString("latin1", from, to);
      from = to + 1;
    }
    return undefined;
  }

  #placeOf(key: string): number | undefined {
    const bytes = Buffer.from(key, "latin1");
    return this.#find(bytes, 0, bytes.length, hashOf(bytes, 0, bytes.length));
  }

  /** Where a line begins that begins with these bytes, of which the hash of a key is known. */
  #find(bytes: Buffer, from: number, to: number, hash: number): number | undefined {
    const mask = this.#places.length - 1;
    for (let place = hash & mask; this.#places[place] !== 0; place = (place + 1) & mask) {
      if (this.#hashes[place] !== hash) continue;
      const at = (this.#places[place] ?? 0) - 1;
      const end = at + to - from;
      if (end <= this.#length && this.#bytes.compare(bytes, from, to, at, end) === 0) return at;
    }
    return undefined;
  }

  #put(from: number, hash: number): void {
    const mask = this.#places.length - 1;
    let place = hash & mask;
    while (this.#places[place] !== 0) place = (place + 1) & mask;
    this.#places[place] = from + 1;
    this.#hashes[place] = hash;
  }

  /** Looking for a key takes long when nearly all places are taken. */
  #spread(): void {
    const [places, hashes] = [this.#places, this.#hashes];
    this.#places = new Int32Array(2 * places.length);
    this.#hashes = new Int32Array(2 * places.length);
    places.forEach((from, place) => {
      if (from !== 0) this.#put(from - 1, hashes[place] ?? 0);
    });
  }
}

function hashOf(bytes: Buffer, from: number, to: number): number {
  const end = Math.min(to, from + hashedLength);
  let hash = 0;
  for (let at = from; at < end; at++) hash = (Math.imul(hash, 31) + (bytes[at] ?? 0)) | 0;
  // The place is named by the lowest bits, which the first bytes hardly reach.
  return hash ^ (hash >>> 15);
}
