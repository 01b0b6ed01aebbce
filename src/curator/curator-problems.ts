/**
 * The problems with Curators, while they last: that none serves, that this node was removed, that an event is too large,
 * and each address at which something else answers.
 */
import { Value } from "../async.ts";
import type { Problem } from "../core/problem.ts";
import { describeInLine } from "../errors.ts";
import { isUntrusted } from "./connection.ts";

/** The problems that last. */
interface Told {
  unreachable?: Problem | undefined;
  removed?: Problem | undefined;
  tooLarge?: Problem | undefined;
  /** By address. */
  readonly untrusted: Map<string, Problem>;
}

/** What changed of them; what is left out stays as it is. */
export interface ToldChange extends Partial<Omit<Told, "untrusted">> {
  /** How the last try of an address ended. */
  readonly untrusted?: { readonly address: string; readonly error?: unknown };
}

export class CuratorProblems {
  readonly problems = new Value<readonly Problem[]>([]);
  readonly #told: Told = { untrusted: new Map() };

  /** Takes in what changed of the problems; nobody is woken when nothing did. */
  tell(change: ToldChange): void {
    const { untrusted, ...lasting } = change;
    Object.assign(this.#told, lasting);
    if (untrusted !== undefined) {
      const { address, error } = untrusted;
      if (isUntrusted(error)) {
        this.#told.untrusted.set(address, { kind: "curator-untrusted", message: describeInLine(error) });
      } else this.#told.untrusted.delete(address);
    }
    const { unreachable, removed, tooLarge } = this.#told;
    const next = [unreachable, removed, tooLarge, ...this.#told.untrusted.values()].filter(
      (problem) => problem !== undefined,
    );
    const before = this.problems.get();
    const same =
      next.length === before.length && next.every(({ message }, at) => message === before[at]?.message);
    if (!same) this.problems.set(next);
  }

  /** Only these addresses are tried any more. Told with the next change. */
  keepOnly(addresses: readonly string[]): void {
    for (const address of this.#told.untrusted.keys()) {
      if (!addresses.includes(address)) this.#told.untrusted.delete(address);
    }
  }
}
