/**
 * Who holds which prefix, so that overlaps are found without looking at every node.
 *
 * A binary trie with skipped levels, one per address family: at the limits of contract part 7 (640,000 prefixes)
 * a question still costs as many steps as a prefix has bits. Prefixes of one owner may overlap each other, and two
 * owners may hold one prefix (nodes behind one external address).
 */
import { familyBits, type Family, type Prefix } from "../core/prefix.ts";
import type { NodeId } from "../core/node.ts";

/** A prefix and the node that holds it. */
export interface Holding {
  readonly owner: NodeId;
  readonly prefix: Prefix;
}

interface Branch {
  /** Where two longer prefixes part and nobody holds it: only its length and the bits before that mean something. */
  prefix: Prefix;
  /** Empty where two longer prefixes part. */
  owners: readonly NodeId[];
  low: Branch | undefined;
  high: Branch | undefined;
}

export class PrefixIndex {
  readonly #roots = new Map<Family, Branch>();

  /** Holding a prefix twice is the same as once. */
  add({ owner, prefix }: Holding): void {
    this.#roots.set(prefix.family, withHolding(this.#roots.get(prefix.family), owner, prefix));
  }

  /** Giving up what is not held changes nothing. */
  delete({ owner, prefix }: Holding): void {
    const root = withoutHolding(this.#roots.get(prefix.family), owner, prefix);
    if (root === undefined) this.#roots.delete(prefix.family);
    else this.#roots.set(prefix.family, root);
  }

  /** A prefix of another node than `self` that has an address in common with `prefix`. */
  findOther(self: NodeId, prefix: Prefix): Holding | undefined {
    let branch = this.#roots.get(prefix.family);
    while (branch !== undefined) {
      const common = commonLength(branch.prefix, prefix);
      if (common < branch.prefix.length && common < prefix.length) return undefined;
      if (branch.prefix.length >= prefix.length) return otherBelow(branch, self);
      const other = otherOwner(branch, self);
      if (other !== undefined) return other;
      branch = bitAt(prefix, branch.prefix.length) ? branch.high : branch.low;
    }
    return undefined;
  }
}

function withHolding(branch: Branch | undefined, owner: NodeId, prefix: Prefix): Branch {
  if (branch === undefined) return { prefix, owners: [owner], low: undefined, high: undefined };
  const common = commonLength(branch.prefix, prefix);
  if (common === branch.prefix.length && common === prefix.length) {
    branch.prefix = prefix;
    if (!branch.owners.includes(owner)) branch.owners = [...branch.owners, owner];
    return branch;
  }
  if (common === branch.prefix.length) {
    if (bitAt(prefix, common)) branch.high = withHolding(branch.high, owner, prefix);
    else branch.low = withHolding(branch.low, owner, prefix);
    return branch;
  }
  const parting: Branch =
    common === prefix.length
      ? { prefix, owners: [owner], low: undefined, high: undefined }
      : { prefix: { ...prefix, length: common }, owners: [], low: undefined, high: undefined };
  if (bitAt(branch.prefix, common)) parting.high = branch;
  else parting.low = branch;
  return common === prefix.length ? parting : withHolding(parting, owner, prefix);
}

function withoutHolding(branch: Branch | undefined, owner: NodeId, prefix: Prefix): Branch | undefined {
  if (branch === undefined || commonLength(branch.prefix, prefix) < branch.prefix.length) return branch;
  if (branch.prefix.length === prefix.length) branch.owners = branch.owners.filter((each) => each !== owner);
  else if (bitAt(prefix, branch.prefix.length)) branch.high = withoutHolding(branch.high, owner, prefix);
  else branch.low = withoutHolding(branch.low, owner, prefix);
  if (branch.owners.length > 0) return branch;
  if (branch.low === undefined) return branch.high;
  return branch.high === undefined ? branch.low : branch;
}

function otherOwner(branch: Branch, self: NodeId): Holding | undefined {
  const owner = branch.owners.find((each) => each !== self);
  return owner === undefined ? undefined : { owner, prefix: branch.prefix };
}

function otherBelow(branch: Branch | undefined, self: NodeId): Holding | undefined {
  if (branch === undefined) return undefined;
  return otherOwner(branch, self) ?? otherBelow(branch.low, self) ?? otherBelow(branch.high, self);
}

/** Leading bits that both have and agree in. */
function commonLength(a: Prefix, b: Prefix): number {
  const shorter = Math.min(a.length, b.length);
  const bits = familyBits(a.family);
  const differing = (a.value ^ b.value) >> BigInt(bits - shorter);
  return differing === 0n ? shorter : shorter - differing.toString(2).length;
}

function bitAt(prefix: Prefix, index: number): boolean {
  return (prefix.value >> BigInt(familyBits(prefix.family) - 1 - index)) % 2n === 1n;
}
