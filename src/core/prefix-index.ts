/**
 * Who holds which prefix, so that overlaps are found without looking at every node.
 *
 * A binary trie with skipped levels, one per address family: at the limits of contract part 7 (640,000 prefixes)
 * a question still costs as many steps as a prefix has bits. Prefixes of one owner may overlap each other, and any
 * number of owners may hold one prefix (nodes behind one external address).
 */
import { type Bits, commonBits, isSet } from "./bits.ts";
import type { NodeId } from "./node.ts";
import type { Family, Prefix } from "./prefix.ts";

/** A prefix and the node that holds it. */
export interface Holding {
  readonly owner: NodeId;
  readonly prefix: Prefix;
}

/** The first bits of an address: a prefix, or where two of them part. */
interface Start extends Bits {
  readonly length: number;
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
  bits: Start;
  /** Undefined where two longer prefixes part and nobody holds it. */
  prefix: Prefix | undefined;
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
      else if (isSet(prefix, parent.bits.length)) parent.high = child;
      else parent.low = child;
    };
    while (branch !== undefined) {
      const common = commonLength(branch.bits, prefix);
      if (common < branch.bits.length) {
        // They part here, or the branch is inside the prefix.
        const isAround = common === prefix.length;
        const parting: Branch = {
          bits: isAround ? prefix : { a: prefix.a, b: prefix.b, c: prefix.c, d: prefix.d, length: common },
          prefix: undefined,
          owners: undefined,
          low: undefined,
          high: undefined,
        };
        if (isSet(branch.bits, common)) parting.high = branch;
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
        branch.prefix ??= prefix;
        branch.owners = withOwner(branch.owners, owner);
        return meets;
      }
      meets ||= branch.owners !== undefined && branch.owners !== owner;
      parent = branch;
      branch = isSet(prefix, common) ? branch.high : branch.low;
    }
    put({ bits: prefix, prefix, owners: owner, low: undefined, high: undefined });
    return meets;
  }

  /** Giving up what is not held changes nothing. */
  delete(holding: Holding): void {
    const { family } = holding.prefix;
    const root = withoutHolding(this.#roots.get(family), holding, holding.prefix);
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
    this.#visit(prefix, ({ owners, bits }) => {
      if (owners !== undefined) visit(owners, bits.length > prefix.length);
      return true;
    });
  }

  /** Shows every branch that has an address in common with `prefix`, until `visit` says false. */
  #visit(prefix: Prefix, visit: (branch: Branch) => boolean): void {
    let branch = this.#roots.get(prefix.family);
    while (branch !== undefined) {
      const common = commonLength(branch.bits, prefix);
      if (common < branch.bits.length && common < prefix.length) return;
      if (branch.bits.length >= prefix.length) {
        visitBelow(branch, visit);
        return;
      }
      if (!visit(branch)) return;
      branch = isSet(prefix, branch.bits.length) ? branch.high : branch.low;
    }
  }
}

function visitBelow(branch: Branch | undefined, visit: (branch: Branch) => boolean): boolean {
  if (branch === undefined) return true;
  return visit(branch) && visitBelow(branch.low, visit) && visitBelow(branch.high, visit);
}

function otherHolding({ owners, prefix }: Branch, self: NodeId): Holding | undefined {
  const owner = typeof owners === "string" ? owners : owners?.values().find((each: NodeId) => each !== self);
  return owner === undefined || owner === self || prefix === undefined ? undefined : { owner, prefix };
}

function withoutHolding(branch: Branch | undefined, holding: Holding, bits: Start): Branch | undefined {
  if (branch === undefined || commonLength(branch.bits, bits) < branch.bits.length) return branch;
  if (branch.bits.length === bits.length) branch.owners = withoutOwner(branch.owners, holding.owner);
  else if (isSet(bits, branch.bits.length)) branch.high = withoutHolding(branch.high, holding, bits);
  else branch.low = withoutHolding(branch.low, holding, bits);
  if (branch.owners !== undefined) return branch;
  branch.prefix = undefined;
  if (branch.low === undefined) return branch.high;
  return branch.high === undefined ? branch.low : branch;
}

/** Leading bits that both have and agree in. */
function commonLength(x: Start, y: Start): number {
  return Math.min(commonBits(x, y), x.length, y.length);
}
