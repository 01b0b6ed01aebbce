/**
 * Who holds which prefix, so that overlaps are found without looking at every node.
 *
 * A binary trie with skipped levels, one per address family: at the limits of contract part 7 (640,000 prefixes)
 * a question still costs as many steps as a prefix has bits. Prefixes of one owner may overlap each other, and any
 * number of owners may hold one prefix (nodes behind one external address).
 */
import { commonBits, isSet } from "./bits.ts";
import type { NodeId } from "./node.ts";
import type { Family, Prefix } from "./prefix.ts";

/** A prefix and the node that holds it. */
export interface Holding {
  readonly owner: NodeId;
  readonly prefix: Prefix;
}

/** Who has the same thing: nearly always one node, which needs no set. Undefined: nobody. */
export type Owners = NodeId | Set<NodeId> | undefined;

/** One more owner; changes a set in place. */
export function withOwner(owners: Owners, owner: NodeId): Owners {
  if (owners === undefined || owners === owner) return owner;
  return typeof owners === "string" ? new Set([owners, owner]) : owners.add(owner);
}

/** One owner less; changes a set in place. */
export function withoutOwner(owners: Owners, owner: NodeId): Owners {
  if (owners === undefined || typeof owners === "string") return owners === owner ? undefined : owners;
  owners.delete(owner);
  return owners.size === 0 ? undefined : owners;
}

/** Every owner. */
export function ownersOf(owners: Owners): Iterable<NodeId> {
  return typeof owners === "string" ? [owners] : (owners ?? []);
}

/** Adds every owner to a set. */
export function collectOwners(owners: Owners, into: Set<NodeId>): void {
  for (const owner of ownersOf(owners)) into.add(owner);
}

interface Branch {
  /** One that begins as all below do: the one that is held here, while somebody holds one here. */
  prefix: Prefix;
  /** So many of its bits all below have alike. */
  length: number;
  /** Undefined where two longer prefixes part and nobody holds this one. */
  owners: Owners;
  low: Branch | undefined;
  high: Branch | undefined;
}

export class PrefixIndex {
  readonly #roots = new Map<Family, Branch>();

  /**
   * Holding a prefix twice is the same as once. False: nobody else has an address in common with it; true says that
   * somebody may.
   */
  add({ owner, prefix }: Holding): boolean {
    const { family } = prefix;
    let meets = false;
    let parent: Branch | undefined;
    let branch = this.#roots.get(family);
    const put = (child: Branch): void => {
      if (parent === undefined) this.#roots.set(family, child);
      else if (isSet(prefix, parent.length)) parent.high = child;
      else parent.low = child;
    };
    while (branch !== undefined) {
      const common = commonLength(branch, prefix);
      if (common < branch.length) {
        // They part here, or the branch is inside the prefix.
        const isAround = common === prefix.length;
        const parting = leaf(prefix, common, undefined);
        if (isSet(branch.prefix, common)) parting.high = branch;
        else parting.low = branch;
        put(parting);
        branch = parting;
        meets ||= isAround;
        if (!isAround) {
          parent = parting;
          break;
        }
      }
      if (common === prefix.length) {
        meets ||= branch.low !== undefined || branch.high !== undefined;
        meets ||= branch.owners !== undefined && branch.owners !== owner;
        if (branch.owners === undefined) branch.prefix = prefix;
        branch.owners = withOwner(branch.owners, owner);
        return meets;
      }
      meets ||= branch.owners !== undefined && branch.owners !== owner;
      parent = branch;
      branch = isSet(prefix, common) ? branch.high : branch.low;
    }
    put(leaf(prefix, prefix.length, owner));
    return meets;
  }

  /** Giving up what is not held changes nothing. */
  delete(holding: Holding): void {
    const { family } = holding.prefix;
    const root = withoutHolding(this.#roots.get(family), holding);
    if (root === undefined) this.#roots.delete(family);
    else this.#roots.set(family, root);
  }

  /** A prefix of another node than `self` that has an address in common with `prefix`. */
  findOther(self: NodeId, prefix: Prefix): Holding | undefined {
    let found: Holding | undefined;
    this.#visit(prefix, (branch) => {
      found = otherHolding(branch, self);
      return found === undefined;
    });
    return found;
  }

  /** Adds everybody who holds a prefix that has an address in common with `prefix`. */
  collectOwners(prefix: Prefix, into: Set<NodeId>): void {
    this.#visit(prefix, ({ owners }) => {
      collectOwners(owners, into);
      return true;
    });
  }

  /**
   * Shows the owners of every prefix that has an address in common with `prefix`: wider ones first, the widest of them
   * before the others, then the prefix itself, then those inside it in their order.
   */
  visitOwners(prefix: Prefix, visit: (owners: Owners, isInside: boolean) => void): void {
    this.#visit(prefix, ({ owners, length }) => {
      if (owners !== undefined) visit(owners, length > prefix.length);
      return true;
    });
  }

  /** Shows every branch that has an address in common with `prefix`, until `visit` says false. */
  #visit(prefix: Prefix, visit: (branch: Branch) => boolean): void {
    let branch = this.#roots.get(prefix.family);
    while (branch !== undefined) {
      const common = commonLength(branch, prefix);
      if (common < branch.length && common < prefix.length) return;
      if (branch.length >= prefix.length) {
        visitBelow(branch, visit);
        return;
      }
      if (!visit(branch)) return;
      branch = isSet(prefix, branch.length) ? branch.high : branch.low;
    }
  }
}

/** A branch with none below. All are made here, so that all take the same room. */
function leaf(prefix: Prefix, length: number, owners: Owners): Branch {
  return { prefix, length, owners, low: undefined, high: undefined };
}

function visitBelow(branch: Branch | undefined, visit: (branch: Branch) => boolean): boolean {
  if (branch === undefined) return true;
  return visit(branch) && visitBelow(branch.low, visit) && visitBelow(branch.high, visit);
}

function otherHolding({ owners, prefix }: Branch, self: NodeId): Holding | undefined {
  const owner = typeof owners === "string" ? owners : owners?.values().find((each: NodeId) => each !== self);
  return owner === undefined || owner === self ? undefined : { owner, prefix };
}

function withoutHolding(branch: Branch | undefined, holding: Holding): Branch | undefined {
  const { owner, prefix } = holding;
  if (branch === undefined || commonLength(branch, prefix) < branch.length) return branch;
  if (branch.length === prefix.length) branch.owners = withoutOwner(branch.owners, owner);
  else if (isSet(prefix, branch.length)) branch.high = withoutHolding(branch.high, holding);
  else branch.low = withoutHolding(branch.low, holding);
  if (branch.owners !== undefined) return branch;
  if (branch.low === undefined) return branch.high;
  return branch.high === undefined ? branch.low : branch;
}

/** Leading bits that both have and agree in. */
function commonLength(branch: Branch, prefix: Prefix): number {
  return Math.min(commonBits(branch.prefix, prefix), branch.length, prefix.length);
}
