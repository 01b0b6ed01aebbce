/**
 * `Prefixes`: the network prefixes that a node announces into the mesh, as the library's users hold them.
 *
 * Behaves as the Go type of the same name does, whose results are in test/fixtures/prefixes.json: it keeps what it
 * is given in order, duplicates and host bits too; `update` merges, and what cannot be announced is reported when
 * it is announced, not here.
 */
import { parseInterfacePrefix, type Prefix } from "./core/prefix.ts";

export class Prefixes implements Iterable<Prefix> {
  readonly #prefixes: Prefix[];

  /** Takes CIDR texts in any spelling, or parsed prefixes. Throws ClusternetError for a text that is no prefix. */
  constructor(prefixes: Iterable<string | Prefix> = []) {
    this.#prefixes = Array.from(prefixes, (each) =>
      typeof each === "string" ? parseInterfacePrefix(each) : each,
    );
  }

  [Symbol.iterator](): Iterator<Prefix> {
    return this.#prefixes.values();
  }

  /** Copies every prefix of `other` that is not here yet to the end, in the order of first appearance. */
  update(other: Prefixes): void {
    const known = new Set(this.#prefixes.map((each) => each.text));
    for (const prefix of other) {
      if (known.has(prefix.text)) continue;
      known.add(prefix.text);
      this.#prefixes.push(prefix);
    }
  }

  /** The same prefixes, whatever their order; an absent value equals an empty one. */
  equal(other: Prefixes | undefined): boolean {
    return this.toString() === (other?.toString() ?? "");
  }

  /** The prefixes as text, sorted (as text), joined with ", ". */
  toString(): string {
    return this.#prefixes
      .map((each) => each.text)
      .toSorted()
      .join(", ");
  }
}
