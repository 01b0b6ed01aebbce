/**
 * Damaged input for fuzz tests: good samples that were cut, doubled, nested, mixed and sprinkled with what parsers
 * trip over. Random bytes alone seldom come past the first check of a reader.
 */
import * as fc from "fast-check";

/** What a mutation puts in: numbers at the edge, control characters, words of the formats. */
const tokens: readonly string[] = [
  "",
  "\0",
  "\u001b[2J",
  "\r",
  "\n",
  "\t",
  " ",
  "\u202e",
  "\u0085",
  "\ud800",
  "ü",
  "-1",
  "0",
  "1e400",
  "NaN",
  "99999999999999999999",
  "4294967296",
  "0x10",
  "null",
  "true",
  "[]",
  "{}",
  '"',
  "\\",
  ",",
  ":",
  "/",
  "=",
  "#",
  "(none)",
  "off",
  "::",
  "::ffff:1.2.3.4",
  "fe80::1%eth0",
  "10.192.0.0/33",
  "__proto__",
  "constructor",
  "[Peer]",
  "[Interface]",
  "# node = x",
  "PrivateKey = ",
  "-----BEGIN CERTIFICATE-----",
  "-----BEGIN PRIVATE KEY-----",
  "-----END CERTIFICATE-----",
];

type Mutation =
  | { readonly kind: "cut" | "double" | "repeat" | "flip"; readonly from: number; readonly length: number }
  | { readonly kind: "insert"; readonly from: number; readonly text: string }
  | { readonly kind: "splice"; readonly from: number; readonly sample: number; readonly length: number };

/** Places are fractions, so that they mean something in every sample; of integers, since doubles crowd around zero. */
const place = fc.noBias(fc.nat(99_999)).map((part) => part / 100_000);
const mutation: fc.Arbitrary<Mutation> = fc.oneof(
  fc.record({
    kind: fc.constantFrom("cut" as const, "double" as const, "flip" as const),
    from: place,
    length: fc.nat(40),
  }),
  fc.record({ kind: fc.constant("repeat" as const), from: place, length: fc.nat(200) }),
  fc.record({
    kind: fc.constant("insert" as const),
    from: place,
    text: fc.oneof(fc.constantFrom(...tokens), fc.string({ unit: "binary", maxLength: 6 })),
  }),
  fc.record({
    kind: fc.constant("splice" as const),
    from: place,
    sample: fc.nat(1_000),
    length: fc.nat(200),
  }),
);

/** Bytes as characters of one byte each, so that texts and bytes are damaged by the same code. */
function mutate(sample: string, mutations: readonly Mutation[], samples: readonly string[]): string {
  let text = sample;
  for (const each of mutations) {
    const at = Math.floor(each.from * text.length);
    const before = text.slice(0, at);
    if (each.kind === "insert") text = `${before}${each.text}${text.slice(at)}`;
    else {
      const piece = text.slice(at, at + each.length);
      const after = text.slice(at + each.length);
      switch (each.kind) {
        case "cut":
          text = before + after;
          break;
        case "double":
          text = before + piece + piece + after;
          break;
        case "repeat":
          // Long enough to show a reader whose time grows faster than its input.
          text = before + piece.repeat(50) + after;
          break;
        case "flip":
          text = before + flipped(piece) + after;
          break;
        case "splice": {
          const other = samples[each.sample % samples.length] ?? "";
          text = before + other.slice(at, at + each.length) + after;
          break;
        }
      }
    }
  }
  return text;
}

function flipped(piece: string): string {
  return piece.length === 0
    ? piece
    : String.fromCharCode(piece.charCodeAt(0) ^ (1 << (piece.length & 7))) + piece.slice(1);
}

/** One of the samples with up to six damages, or a text of anything. */
export function damagedText(samples: readonly string[]): fc.Arbitrary<string> {
  return fc.oneof(
    {
      weight: 9,
      arbitrary: fc
        .tuple(fc.constantFrom(...samples), fc.array(mutation, { maxLength: 6 }))
        .map(([sample, mutations]) => mutate(sample, mutations, samples)),
    },
    { weight: 1, arbitrary: fc.string({ unit: "binary", maxLength: 200 }) },
  );
}

/** The same of bytes. */
export function damagedBytes(samples: readonly Uint8Array[]): fc.Arbitrary<Uint8Array> {
  const texts = samples.map((bytes) => Buffer.from(bytes).toString("latin1"));
  // Latin-1 cuts a character to its lowest byte, so a token puts in bytes as well.
  return damagedText(texts).map((text) => new Uint8Array(Buffer.from(text, "latin1")));
}

/** What a JSON value is replaced by. */
const wrongValue: fc.Arbitrary<unknown> = fc.oneof(
  fc.constantFrom<unknown>(null, true, -1, 0.5, 2 ** 53, 1e308, "", [], {}, [[]], { "": {} }),
  fc.constantFrom(...tokens),
  fc.jsonValue({ maxDepth: 2 }),
);

type Edit = { readonly at: number } & (
  | { readonly kind: "delete" | "double" | "nest" }
  | { readonly kind: "replace"; readonly value: unknown }
  | { readonly kind: "rename"; readonly name: string }
);

const edit: fc.Arbitrary<Edit> = fc.oneof(
  fc.record({ at: place, kind: fc.constantFrom("delete" as const, "double" as const, "nest" as const) }),
  fc.record({ at: place, kind: fc.constant("replace" as const), value: wrongValue }),
  fc.record({ at: place, kind: fc.constant("rename" as const), name: fc.constantFrom(...tokens) }),
);

interface Slot {
  readonly owner: Record<string, unknown>;
  readonly key: string;
}

/** Every place in the value that holds something. Arrays are objects with numbers for names here. */
function slotsOf(value: unknown, found: Slot[] = []): readonly Slot[] {
  if (typeof value !== "object" || value === null) return found;
  const owner = value as Record<string, unknown>;
  for (const key of Object.keys(owner)) {
    found.push({ owner, key });
    slotsOf(owner[key], found);
  }
  return found;
}

function applyEdit(root: { readonly value: unknown }, change: Edit): void {
  const slots = slotsOf(root);
  const slot = slots[Math.min(slots.length - 1, Math.floor(change.at * slots.length))];
  if (slot === undefined) return;
  const { owner, key } = slot;
  const before = owner[key];
  switch (change.kind) {
    case "delete":
      if (Array.isArray(owner)) owner.splice(Number(key), 1);
      else delete owner[key];
      break;
    case "double":
      if (Array.isArray(owner)) owner.push(structuredClone(before));
      else owner[`${key}2`] = structuredClone(before);
      break;
    case "nest":
      owner[key] = [structuredClone(before)];
      break;
    case "replace":
      // A copy: the next edit may be one inside it.
      owner[key] = structuredClone(change.value);
      break;
    case "rename":
      if (Array.isArray(owner)) break;
      delete owner[key];
      // Not by assignment: "__proto__" is to become a name like any other.
      Object.defineProperty(owner, change.name, {
        value: before,
        enumerable: true,
        configurable: true,
        writable: true,
      });
      break;
  }
}

/** JSON of the samples' kind with wrong shapes. A text that stays, stays whole. */
export function reshapedJson(samples: readonly string[]): fc.Arbitrary<string> {
  return fc
    .tuple(fc.constantFrom(...samples), fc.array(edit, { minLength: 1, maxLength: 5 }))
    .map(([sample, edits]) => {
      const root: { value: unknown } = { value: JSON.parse(sample) };
      for (const each of edits) applyEdit(root, each);
      return JSON.stringify(root.value) ?? "";
    });
}

/** The same, and now and then no JSON at all. */
export function damagedJson(samples: readonly string[]): fc.Arbitrary<string> {
  return fc.oneof(
    { weight: 7, arbitrary: reshapedJson(samples) },
    { weight: 2, arbitrary: damagedText(samples) },
    { weight: 1, arbitrary: fc.nat(20_000).map((depth) => "[".repeat(depth) + "]".repeat(depth)) },
  );
}
