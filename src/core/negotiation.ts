/**
 * What of an announcement a Curator takes, when it refuses all of it for one prefix (C2): which prefixes to try next,
 * given what it has answered so far. Pure; announcer.ts makes the tries.
 *
 * A try that is taken replaces the announcement before it for the whole cluster, so a search must not take working
 * prefixes away: what the Curator holds is in every try. Only when the Curator refuses exactly that, with nothing
 * new in it, those of it that it names are left out. With eight tries one bad prefix among hundreds is found by halving;
 * several are not, so the likely ones are set aside first: those that a Curator of Metropolis is known to refuse, those
 * refused before, and those that the refusal names. All of these are hints: what is set aside is tried again by
 * itself as long as tries are left, and the Curator's answer decides.
 */
import { containsPrefix, hostPrefix, parsePrefix, type Address, type Prefix } from "./prefix.ts";

/** Tries for one change of what this node announces. */
export const triesOfChange = 8;
/** Tries when nothing has changed but time, or the Curator. */
export const triesOfRetry = 3;

/** How likely it is to be refused: by a rule, by experience, by name in this negotiation. */
const doubt = { rule: 1, refusedBefore: 2, named: 3 } as const;

/** A search as far as it has come; made by `startNegotiation`, carried on by `foldTaken` and `foldRefused`. */
export interface Negotiation {
  readonly wanted: readonly Prefix[];
  readonly triesLeft: number;
  /** Texts that are in every try: the Curator held them before, or has taken them in this search. */
  readonly taken: ReadonlySet<string>;
  /** A try was taken: nothing is wrong with key and `taken`. */
  readonly proved: boolean;
  /** Whether `taken` alone is tried next: a refusal may be for something in it, or for the key. */
  readonly questioned: boolean;
  /** `taken` alone was refused, and nothing says for what of it. */
  readonly failed: boolean;
  /** Sets of texts of which at least one is refused; none of them taken, none within another, none of one text. */
  readonly groups: readonly ReadonlySet<string>[];
  /** Texts that are refused by themselves. */
  readonly refused: ReadonlySet<string>;
  /** How likely a text is to be refused (`doubt`); one without an entry is not suspected. */
  readonly doubts: ReadonlyMap<string, number>;
  /** Texts that stood before the one that a refusal named: a Curator that looks at one after the other has passed them. */
  readonly passed: ReadonlySet<string>;
  /** What the Curator said when it refused, by text. */
  readonly words: ReadonlyMap<string, string>;
  /** What earlier negotiations have come to, by text. */
  readonly before: ReadonlyMap<string, RefusedPrefix>;
}

/** What came of it. */
export type Outcome =
  | {
      readonly kind: "taken";
      /** What the Curator holds now, in the order of `wanted`. */
      readonly prefixes: readonly Prefix[];
      readonly refused: readonly RefusedPrefix[];
    }
  /** The Curator takes nothing of it: it is not for some prefixes, or the tries have run out. It holds what it held. */
  | { readonly kind: "refused" };

export interface RefusedPrefix {
  readonly prefix: Prefix;
  /** Refused alone or by name; otherwise only ever together with others. */
  readonly certain: boolean;
  /** What the Curator said. */
  readonly words: string;
}

export interface NegotiationInput {
  readonly wanted: readonly Prefix[];
  /** Texts of the prefixes that the Curator holds of this node; those not wanted any more do not count. */
  readonly held: Iterable<string>;
  /** Texts of the prefixes that will probably be refused, by what is known of Curators. */
  readonly doubted: Iterable<string>;
  /** What earlier negotiations have come to. */
  readonly refusedBefore: readonly RefusedPrefix[];
  readonly tries: number;
}

export function startNegotiation(input: NegotiationInput): Negotiation {
  const { wanted, held, doubted, refusedBefore, tries } = input;
  const known = refusedBefore.filter(({ certain }) => certain).map(({ prefix }) => prefix.text);
  const taken = new Set(held).intersection(new Set(wanted.map(({ text }) => text)));
  return {
    wanted,
    triesLeft: tries,
    taken,
    proved: false,
    questioned: false,
    failed: false,
    groups: [],
    refused: new Set(),
    // What is held has been taken once, whatever a rule says.
    doubts: new Map(
      [
        ...[...doubted].map((text) => [text, doubt.rule] as const),
        ...known.map((text) => [text, doubt.refusedBefore] as const),
      ].filter(([text]) => !taken.has(text)),
    ),
    passed: new Set(),
    words: new Map(),
    before: new Map(refusedBefore.map((each) => [each.prefix.text, each])),
  };
}

/** The prefixes to announce next, in the order of `wanted`; undefined when the search is over. */
export function nextTry(negotiation: Negotiation): readonly Prefix[] | undefined {
  const { wanted, triesLeft, taken, proved, questioned, failed, groups } = negotiation;
  if (failed || triesLeft <= 0) return undefined;
  const open = openOf(negotiation);
  const withOpen = (texts: ReadonlySet<string>): readonly Prefix[] =>
    wanted.filter(({ text }) => taken.has(text) || texts.has(text));
  const untried = groups.length === 0 && negotiation.refused.size === 0;
  if (!questioned && untried) return proved && open.length === 0 ? undefined : wanted;
  if (open.length === 0 && proved) return undefined;
  if (!proved && (questioned || open.length === 0 || triesLeft === 1)) return withOpen(new Set());
  const likely = promising(negotiation, open);
  // Before the tries run out, something that will surely be taken.
  return withOpen(!proved && triesLeft === 2 ? safest(negotiation, likely) : likely);
}

/** The Curator has taken this try, and holds it now. */
export function foldTaken(negotiation: Negotiation, tried: readonly Prefix[]): Negotiation {
  const taken = new Set(tried.map(({ text }) => text));
  return settled({
    ...negotiation,
    triesLeft: negotiation.triesLeft - 1,
    taken,
    proved: true,
    questioned: false,
    groups: negotiation.groups.map((group) => group.difference(taken)),
    refused: negotiation.refused.difference(taken),
  });
}

/** The Curator has refused this try as a whole, with these words. */
export function foldRefused(negotiation: Negotiation, tried: readonly Prefix[], words: string): Negotiation {
  const { taken, proved } = negotiation;
  const next = { ...negotiation, triesLeft: negotiation.triesLeft - 1, questioned: false };
  const named = namedIn(words, tried);
  const group = new Set(tried.map(({ text }) => text)).difference(taken);
  const doubts = new Map(negotiation.doubts);
  if (named !== undefined) doubts.set(named, doubt.named);
  if (group.size === 0) return withoutSuspects({ ...next, doubts }, words);
  const texts = [...group];
  const at = named === undefined ? -1 : texts.indexOf(named);
  const heard = new Map(negotiation.words);
  for (const text of group) {
    // The refusal that named it says more than one of a smaller set that did not.
    if (text === named || negotiation.doubts.get(text) !== doubt.named) heard.set(text, words);
  }
  return settled({
    ...next,
    doubts,
    passed: negotiation.passed.union(new Set(texts.slice(0, Math.max(at, 0)))),
    words: heard,
    groups: [...negotiation.groups, group],
    // It names what is held, or nothing speaks against any of these: then it may be that, or the key.
    questioned: !proved && at === -1 && (named !== undefined || texts.every((text) => !doubts.has(text))),
  });
}

/** What the search has come to. */
export function outcomeOf(negotiation: Negotiation): Outcome {
  const { wanted, taken, proved, refused, doubts, words, before } = negotiation;
  if (!proved) return { kind: "refused" };
  const judge = (prefix: Prefix): RefusedPrefix => {
    const { text } = prefix;
    const last = before.get(text);
    const named = doubts.get(text) === doubt.named;
    // What is known already is said in the same words, so that it is one and the same report.
    if (last?.certain === true && !named) return last;
    return { prefix, certain: named || refused.has(text), words: words.get(text) ?? last?.words ?? "" };
  };
  return {
    kind: "taken",
    prefixes: wanted.filter(({ text }) => taken.has(text)),
    refused: wanted.filter(({ text }) => !taken.has(text)).map(judge),
  };
}

/** Where a Curator of Metropolis takes pod prefixes, whatever the ClusterNets of the agents are (C2). */
const metropolisNet = parsePrefix("10.192.0.0/11");

/** Texts of the prefixes that a Curator of Metropolis refuses (C2), which knows this node by the address `shown`. */
export function refusedByRule(
  wanted: readonly Prefix[],
  own: { readonly externalAddress: Address | undefined; readonly shown: string | undefined },
): readonly string[] {
  const host = own.externalAddress === undefined ? undefined : hostPrefix(own.externalAddress).text;
  const hostRefused = own.shown !== undefined && own.shown !== own.externalAddress?.text;
  return wanted
    .filter((prefix) => (prefix.text === host ? hostRefused : !containsPrefix(metropolisNet, prefix)))
    .map(({ text }) => text);
}

/** Texts that are neither taken nor known to be refused, in the order of `wanted`. */
function openOf({ wanted, taken, refused }: Negotiation): readonly string[] {
  return wanted.map(({ text }) => text).filter((text) => !taken.has(text) && !refused.has(text));
}

/**
 * The least doubted of those that are open. When they have been refused, less half of what all refusals have in common,
 * as if one of them were bad; of several that are, only half of the smallest group.
 */
function promising({ doubts, groups, triesLeft }: Negotiation, open: readonly string[]): ReadonlySet<string> {
  const least = Math.min(...open.map((text) => doubts.get(text) ?? 0));
  const chosen = new Set(open.filter((text) => (doubts.get(text) ?? 0) === least));
  const [smallest, ...others] = groups
    .filter((group) => group.isSubsetOf(chosen))
    .toSorted((a, b) => a.size - b.size);
  if (smallest === undefined) return chosen;
  const common = [...others.reduce((rest, group) => rest.intersection(group), smallest)];
  if (common.length === 0) return new Set([...smallest].slice(0, smallest.size / 2));
  if (triesLeft > 1) return chosen.difference(new Set(common.slice(common.length / 2)));
  // With the last try all that is not suspected is had; or one is judged for sure, so that no search is in vain.
  const unsuspected = chosen.difference(new Set(common));
  return unsuspected.size > 0 ? unsuspected : new Set(common.slice(0, 1));
}

function safest({ passed, doubts }: Negotiation, likely: ReadonlySet<string>): ReadonlySet<string> {
  const safe = [...passed].filter((text) => !doubts.has(text));
  return new Set(safe.length > 0 ? safe : [...likely].slice(0, 1));
}

/** What is held was refused by itself: without those of it that are doubted, or given up when none is. */
function withoutSuspects(negotiation: Negotiation, said: string): Negotiation {
  const { taken, doubts, words } = negotiation;
  const suspects = [...taken].filter((text) => doubts.has(text));
  if (suspects.length === 0 || negotiation.proved) return { ...negotiation, failed: true };
  return settled({
    ...negotiation,
    taken: taken.difference(new Set(suspects)),
    // What was refused together with it may have been refused for it.
    groups: [new Set(suspects)],
    refused: new Set(),
    words: new Map([...words, ...suspects.map((text) => [text, said] as const)]),
  });
}

/** The groups as they are promised to be: what follows from them is drawn. */
function settled(negotiation: Negotiation): Negotiation {
  const refused = new Set(negotiation.refused);
  for (const group of negotiation.groups) {
    const [text] = group;
    if (group.size === 1 && text !== undefined) refused.add(text);
  }
  // One that has been emptied was refused for a reason that has passed; one with a refused text in it is explained.
  const unexplained = negotiation.groups.filter((group) => group.size > 0 && group.isDisjointFrom(refused));
  const groups = unexplained.filter(
    (group, at) =>
      !unexplained.some(
        (other, otherAt) =>
          other.isSubsetOf(group) && (other.size < group.size || (otherAt < at && other.size === group.size)),
      ),
  );
  return { ...negotiation, refused, groups };
}

/** Text of the first of the prefixes that a refusal names: as such, or by its number in the list. */
function namedIn(words: string, tried: readonly Prefix[]): string | undefined {
  const texts = new Set(tried.map(({ text }) => text));
  const [written] = [...words.matchAll(/[0-9a-fA-F:.]+\/\d{1,3}/g)]
    .map(([text]) => text)
    .filter((text) => texts.has(text));
  if (written !== undefined) return written;
  const [, number] = /prefixes\[(\d{1,4})\]/.exec(words) ?? [];
  return number === undefined ? undefined : tried[Number(number)]?.text;
}
