/**
 * Where the prefixes of several nodes overlap: the disputed ones as a forest, and how many others each node meets.
 *
 * Prefixes are nested or have nothing in common. Sorted by address and then the wider first, every prefix comes
 * right after those that contain it, so one sweep with a stack finds all overlaps. 10,000 nodes that all claim the
 * same are 50 million pairs; sets of nodes are therefore kept as bits and joined 32 nodes at a time.
 */
import { comparePrefixes, containsPrefix, type Prefix } from "./prefix.ts";

/** Stands for this node's own prefixes in place of a claim's index. */
export const own = -1;

/** A prefix inside a dispute, once however many claim it. */
export interface Place {
  readonly prefix: Prefix;
  /** The narrowest wider prefix that contains this one. */
  readonly parent: Place | undefined;
  /** Who claims exactly this prefix: indexes of claims, or `own`. */
  readonly claimants: number[];
}

export interface Overlaps {
  /** Every place that two or more have a part in, and all that hangs together with it; a parent before its children. */
  readonly places: readonly Place[];
  /** By index of the claim: the nodes with a prefix that overlaps one of its own, itself among them. Absent: none. */
  readonly met: ReadonlyMap<number, NodeBits>;
}

/** A set of indexes of claims. */
export class NodeBits {
  // Signed: arithmetic on unsigned words leaves the small integers and takes several times as long.
  readonly #words: Int32Array;

  constructor(size: number) {
    this.#words = new Int32Array(Math.ceil(size / 32));
  }

  add(index: number): void {
    const word = index >>> 5;
    this.#words[word] = (this.#words[word] ?? 0) | (1 << (index & 31));
  }

  addAll(other: NodeBits): void {
    const from = other.#words;
    const to = this.#words;
    for (let word = 0; word < from.length; word++) {
      to[word] = (to[word] ?? 0) | (from[word] ?? 0);
    }
  }

  /** Becomes equal to the other, or empty. */
  reset(other: NodeBits | undefined): void {
    if (other === undefined) this.#words.fill(0);
    else this.#words.set(other.#words);
  }

  count(): number {
    let count = 0;
    for (let bits of this.#words) {
      for (; bits !== 0; bits &= bits - 1) count++;
    }
    return count;
  }
}

interface Entry {
  readonly prefix: Prefix;
  readonly node: number;
}

/** Finds all overlaps. `prefixes` by index of the claim, each list without duplicates. This node's own meet nobody. */
export function findOverlaps(
  prefixes: readonly (readonly Prefix[])[],
  ownPrefixes: readonly Prefix[],
): Overlaps {
  const entries: Entry[] = ownPrefixes.map((prefix) => ({ prefix, node: own }));
  for (const [node, list] of prefixes.entries()) {
    for (const prefix of list) entries.push({ prefix, node });
  }
  entries.sort((a, b) => comparePrefixes(a.prefix, b.prefix));

  const sweep = new Sweep(prefixes.length);
  for (let from = 0; from < entries.length;) {
    // What hangs together: a prefix and all that it contains.
    const first = entries[from];
    if (first === undefined) break;
    let disputed = false;
    let to = from + 1;
    for (let next = entries[to]; next !== undefined; next = entries[++to]) {
      if (!containsPrefix(first.prefix, next.prefix)) break;
      disputed ||= next.node !== first.node;
    }
    if (disputed) sweep.take(entries.slice(from, to));
    from = to;
  }
  return sweep;
}

/** An open place of the sweep: its `below` grows until the sweep leaves it. */
interface Level {
  readonly place: Place;
  /** Nodes that claim this place or one around it. */
  readonly around: NodeBits;
  /** Nodes that claim something inside it. */
  readonly inside: NodeBits;
}

class Sweep implements Overlaps {
  readonly places: Place[] = [];
  readonly met = new Map<number, NodeBits>();
  readonly #nodes: number;
  readonly #open: Level[] = [];
  // A set of bits for each depth, used again and again: one for each place would be gigabytes at the worst.
  readonly #spare: { readonly around: NodeBits; readonly inside: NodeBits }[] = [];

  constructor(nodes: number) {
    this.#nodes = nodes;
  }

  /** Takes in prefixes that hang together, in order. */
  take(entries: readonly Entry[]): void {
    for (const { prefix, node } of entries) {
      let top = this.#open.at(-1);
      while (top !== undefined && !containsPrefix(top.place.prefix, prefix)) {
        this.#close();
        top = this.#open.at(-1);
      }
      // Equal prefixes follow each other, so the top is the one to look at.
      const level = top?.place.prefix.length === prefix.length ? top : this.#push(prefix, top);
      level.place.claimants.push(node);
      if (node !== own) level.around.add(node);
    }
    while (this.#open.length > 0) this.#close();
  }

  #push(prefix: Prefix, parent: Level | undefined): Level {
    const place: Place = { prefix, parent: parent?.place, claimants: [] };
    this.places.push(place);
    const depth = this.#open.length;
    const bits = (this.#spare[depth] ??= {
      around: new NodeBits(this.#nodes),
      inside: new NodeBits(this.#nodes),
    });
    bits.around.reset(parent?.around);
    bits.inside.reset(undefined);
    const level = { place, ...bits };
    this.#open.push(level);
    return level;
  }

  #close(): void {
    const level = this.#open.pop();
    if (level === undefined) return;
    const { place, around, inside } = level;
    const parent = this.#open.at(-1);
    parent?.inside.addAll(inside);
    // From here on all that meet this place.
    around.addAll(inside);
    for (const node of place.claimants) {
      if (node === own) continue;
      parent?.inside.add(node);
      let met = this.met.get(node);
      if (met === undefined) {
        met = new NodeBits(this.#nodes);
        this.met.set(node, met);
      }
      met.addAll(around);
    }
  }
}
