/**
 * By what other nodes are judged (C4.4, C4.6), as this host's addresses and this node's own claim change.
 */
import { containsAddress, decodeAddress, unusableReason } from "./core/prefix.ts";
import type { Own } from "./own.ts";
import type { BuildRules } from "./tracker.ts";

const noAddresses: ReadonlySet<string> = new Set();

/** Gives the same object while the rules say the same, so that nothing is judged twice. */
export class CurrentRules {
  readonly #fixed: Pick<BuildRules, "clusterNets" | "ownPublicKey">;
  /** As last given. */
  #rules: BuildRules | undefined;
  /** Addresses of this host that could be an endpoint, of the reading that they were found in. */
  #endpoints: { readonly of: ReadonlySet<string>; readonly texts: ReadonlySet<string> } | undefined;

  constructor(fixed: Pick<BuildRules, "clusterNets" | "ownPublicKey">) {
    this.#fixed = fixed;
  }

  /** `addresses`: all that this host has, as far as they are known. */
  get(own: Own, addresses: ReadonlySet<string> = noAddresses): BuildRules {
    const hostAddresses = this.#ownEndpoints(addresses);
    const ownPrefixes = own.claim.announcement.prefixes;
    const before = this.#rules;
    const isSame =
      before !== undefined &&
      before.ownPrefixes === ownPrefixes &&
      (before.hostAddresses === hostAddresses ||
        (before.hostAddresses.size === hostAddresses.size && hostAddresses.isSubsetOf(before.hostAddresses)));
    if (isSame) return before;
    this.#rules = { ...this.#fixed, hostAddresses, ownPrefixes };
    return this.#rules;
  }

  /** Whether they say otherwise now than when last given. */
  haveChanged(own: Own, addresses?: ReadonlySet<string>): boolean {
    const before = this.#rules;
    return this.get(own, addresses) !== before;
  }

  /** Addresses of this host that another node could announce as its own: not every address of a pod's device. */
  #ownEndpoints(of: ReadonlySet<string>): ReadonlySet<string> {
    if (this.#endpoints?.of !== of) {
      const usable = [...of].filter((text) => {
        const address = decodeAddress(text);
        if ("reason" in address || unusableReason(address) !== undefined) return false;
        return !this.#fixed.clusterNets.some((net) => containsAddress(net, address));
      });
      this.#endpoints = { of, texts: new Set(usable) };
    }
    return this.#endpoints.texts;
  }
}
