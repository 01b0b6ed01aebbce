/** What is announced to a Curator that refuses all for one: try by try, and whatever it refuses and says. */
import { describe, expect, test } from "bun:test";
import { array, assert, boolean, constantFrom, integer, property, record, uniqueArray } from "fast-check";
import {
  foldRefused,
  foldTaken,
  nextTry,
  outcomeOf,
  refusedByRule,
  startNegotiation,
  triesOfChange,
  triesOfRetry,
  type NegotiationInput,
  type Outcome,
  type RefusedPrefix,
} from "../../src/core/negotiation.ts";
import { parseAddress, parsePrefix, type Prefix } from "../../src/core/prefix.ts";

/** The words of a refusal: undefined takes the prefixes. */
type Curator = (texts: readonly string[]) => string | undefined;

interface Talk {
  /** Each try, and whether it was taken. */
  readonly tries: readonly (readonly [texts: readonly string[], taken: boolean])[];
  readonly outcome: Outcome;
}

function negotiate(
  curator: Curator,
  input: Omit<NegotiationInput, "wanted"> & { readonly wanted: readonly Prefix[] },
): Talk {
  const tries: [string[], boolean][] = [];
  let state = startNegotiation(input);
  for (let tried = nextTry(state); tried !== undefined; tried = nextTry(state)) {
    const texts = tried.map(({ text }) => text);
    const words = curator(texts);
    tries.push([texts, words === undefined]);
    state = words === undefined ? foldTaken(state, tried) : foldRefused(state, tried, words);
  }
  return { tries, outcome: outcomeOf(state) };
}

/** Refuses every announcement with one of these in it, and says nothing of them. */
const silent =
  (bad: readonly string[]): Curator =>
  (texts) =>
    texts.some((text) => bad.includes(text)) ? "invalid" : undefined;
/** Looks at one after the other and names the first that it refuses, as our Curator does. */
const naming =
  (bad: readonly string[]): Curator =>
  (texts) => {
    const first = texts.find((text) => bad.includes(text));
    return first === undefined ? undefined : `Cannot use prefix ${first}: expected inside 10.192.0.0/11`;
  };
/** Says which number it has in the list. */
const counting =
  (bad: readonly string[]): Curator =>
  (texts) => {
    const at = texts.findIndex((text) => bad.includes(text));
    return at === -1 ? undefined : `clusternet.prefixes[${at}].cidr must be fully contained`;
  };
const curators = { silent, naming, counting };

const host = "192.0.2.1/32";
const pods = (count: number): string[] =>
  Array.from({ length: count }, (_, index) => `10.${192 + (index >> 8)}.${index & 255}.0/24`);
const pods6 = (count: number): string[] =>
  Array.from({ length: count }, (_, index) => `fd10:c1:0:${(index + 1).toString(16)}::/64`);

/** One line a try: "+" taken or "-" refused, and the prefixes; then what came of it. */
function story({ tries, outcome }: Talk): string[] {
  return [
    ...tries.map(([texts, taken]) => `${taken ? "+" : "-"} ${texts.join(" ")}`.trim()),
    outcome.kind === "refused"
      ? "refused"
      : `holds ${outcome.prefixes.map(({ text }) => text).join(" ")}; refused ${outcome.refused
          .map(({ prefix, certain }) => `${prefix.text}${certain ? "" : "?"}`)
          .join(" ")}`,
  ];
}

const externalAddress = parseAddress("192.0.2.1");
const input = (
  wanted: readonly string[],
  rest: Partial<Omit<NegotiationInput, "wanted">> = {},
): NegotiationInput => {
  const prefixes = wanted.map(parsePrefix);
  return {
    wanted: prefixes,
    held: [],
    doubted: refusedByRule(prefixes, { externalAddress, shown: undefined }),
    refusedBefore: [],
    tries: triesOfChange,
    ...rest,
  };
};

describe("the tries of one change", () => {
  test.each([
    {
      name: "one when all is taken",
      curator: silent([]),
      input: input([host, "10.192.1.0/24", "fd10:c1:0:1::/64"]),
      want: [
        "+ 192.0.2.1/32 10.192.1.0/24 fd10:c1:0:1::/64",
        "holds 192.0.2.1/32 10.192.1.0/24 fd10:c1:0:1::/64; refused ",
      ],
    },
    {
      name: "two at a Curator that takes no IPv6 pod prefix",
      curator: silent(["fd10:c1:0:1::/64"]),
      input: input([host, "10.192.1.0/24", "fd10:c1:0:1::/64"]),
      want: [
        "- 192.0.2.1/32 10.192.1.0/24 fd10:c1:0:1::/64",
        "+ 192.0.2.1/32 10.192.1.0/24",
        "holds 192.0.2.1/32 10.192.1.0/24; refused fd10:c1:0:1::/64",
      ],
    },
    {
      name: "two when the Curator names the one that it refuses",
      curator: naming(["10.192.2.0/24"]),
      input: input([host, ...pods(4)]),
      want: [
        "- 192.0.2.1/32 10.192.0.0/24 10.192.1.0/24 10.192.2.0/24 10.192.3.0/24",
        "+ 192.0.2.1/32 10.192.0.0/24 10.192.1.0/24 10.192.3.0/24",
        "holds 192.0.2.1/32 10.192.0.0/24 10.192.1.0/24 10.192.3.0/24; refused 10.192.2.0/24",
      ],
    },
    {
      name: "the other IPv6 prefixes tried by themselves when only one of them is refused",
      curator: naming(["fd10:c1:0:2::/64"]),
      input: input([host, ...pods6(3)]),
      want: [
        "- 192.0.2.1/32 fd10:c1:0:1::/64 fd10:c1:0:2::/64 fd10:c1:0:3::/64",
        "+ 192.0.2.1/32",
        "+ 192.0.2.1/32 fd10:c1:0:1::/64 fd10:c1:0:3::/64",
        "holds 192.0.2.1/32 fd10:c1:0:1::/64 fd10:c1:0:3::/64; refused fd10:c1:0:2::/64",
      ],
    },
    {
      name: "few when it is the key, and nothing but the key is announced",
      curator: () => "Cannot use public key: it is or was the key of another node",
      input: input([host, "10.192.1.0/24"]),
      want: ["- 192.0.2.1/32 10.192.1.0/24", "-", "refused"],
    },
    {
      name: "never without what is held, also when that is what is refused",
      curator: () => "no",
      input: input([host, "10.192.1.0/24", "10.192.2.0/24"], {
        held: [host, "10.192.1.0/24", "10.192.9.0/24"],
      }),
      want: ["- 192.0.2.1/32 10.192.1.0/24 10.192.2.0/24", "- 192.0.2.1/32 10.192.1.0/24", "refused"],
    },
    {
      name: "without what is held and was just refused by name",
      curator: naming([host]),
      input: input([host, "10.192.1.0/24", "10.192.2.0/24"], { held: [host, "10.192.1.0/24"] }),
      want: [
        "- 192.0.2.1/32 10.192.1.0/24 10.192.2.0/24",
        "- 192.0.2.1/32 10.192.1.0/24",
        "+ 10.192.1.0/24 10.192.2.0/24",
        "holds 10.192.1.0/24 10.192.2.0/24; refused 192.0.2.1/32",
      ],
    },
    {
      name: "at an address that the Curator does not know this node by, all but that",
      curator: silent([host]),
      input: input([host, "10.192.1.0/24"], {
        doubted: refusedByRule([host, "10.192.1.0/24"].map(parsePrefix), {
          externalAddress,
          shown: "192.0.2.9",
        }),
      }),
      want: ["- 192.0.2.1/32 10.192.1.0/24", "+ 10.192.1.0/24", "holds 10.192.1.0/24; refused 192.0.2.1/32"],
    },
    {
      name: "halved without any hint",
      curator: silent(["10.192.2.0/24"]),
      input: input([host, ...pods(4)], { held: [host] }),
      want: [
        "- 192.0.2.1/32 10.192.0.0/24 10.192.1.0/24 10.192.2.0/24 10.192.3.0/24",
        "+ 192.0.2.1/32",
        "+ 192.0.2.1/32 10.192.0.0/24 10.192.1.0/24",
        "- 192.0.2.1/32 10.192.0.0/24 10.192.1.0/24 10.192.2.0/24",
        "+ 192.0.2.1/32 10.192.0.0/24 10.192.1.0/24 10.192.3.0/24",
        "holds 192.0.2.1/32 10.192.0.0/24 10.192.1.0/24 10.192.3.0/24; refused 10.192.2.0/24",
      ],
    },
  ])("$name", ({ curator, input: given, want }) => {
    expect(story(negotiate(curator, given))).toEqual([...want]);
  });

  test.each(Object.entries(curators))(
    "find one bad prefix among hundreds, or leave out its nearest neighbours only (%s)",
    (name, curator) => {
      const wanted = [host, ...pods(300)];
      for (const at of [0, 1, 77, 150, 299]) {
        const bad = pods(300)[at] ?? "";
        const { tries, outcome } = negotiate(curator([bad]), input(wanted));
        expect(tries.length).toBeLessThanOrEqual(triesOfChange);
        const left = outcome.kind === "taken" ? outcome.refused.map(({ prefix }) => prefix.text) : wanted;
        expect(left).toContain(bad);
        expect(left.length).toBeLessThanOrEqual(name === "silent" ? 16 : 1);
      }
    },
  );
});

test("refusedByRule() names what a Curator of Metropolis refuses", () => {
  const wanted = [
    host,
    "10.192.1.0/24",
    "10.191.1.0/24",
    "10.192.0.0/10",
    "fd10:c1:0:1::/64",
    "192.0.2.9/32",
  ].map(parsePrefix);
  const bad = ["10.191.1.0/24", "10.192.0.0/10", "fd10:c1:0:1::/64", "192.0.2.9/32"];
  expect(refusedByRule(wanted, { externalAddress, shown: undefined })).toEqual(bad);
  expect(refusedByRule(wanted, { externalAddress, shown: "192.0.2.1" })).toEqual(bad);
  expect(refusedByRule(wanted, { externalAddress, shown: "192.0.2.2" })).toEqual([host, ...bad]);
  expect(refusedByRule(wanted, { externalAddress: undefined, shown: undefined })).toEqual([host, ...bad]);
});

describe("whatever a Curator refuses and says", () => {
  const all = [host, ...pods(40), ...pods6(20)];
  const scenario = record({
    wanted: uniqueArray(constantFrom(...all), { minLength: 1, maxLength: 50 }),
    bad: uniqueArray(constantFrom(...all), { maxLength: 20 }),
    held: uniqueArray(constantFrom(...all), { maxLength: 20 }),
    doubted: uniqueArray(constantFrom(...all), { maxLength: 20 }),
    tries: constantFrom(triesOfChange, triesOfRetry),
    voice: constantFrom(...Object.values(curators)),
    /** Words that mislead. */
    noise: array(constantFrom(...all, "prefixes[3]", "prefixes[999]", "key"), { maxLength: 3 }),
    misleads: boolean(),
  });

  test("no try leaves out what is held, the tries are few, and what was taken is what the last taken try said", () => {
    assert(
      property(scenario, ({ wanted, bad, held, doubted, tries, voice, noise, misleads }) => {
        const good = held.filter((text) => !bad.includes(text));
        const honest = voice(bad);
        const curator: Curator = (texts) => {
          const words = honest(texts);
          return words !== undefined && misleads ? `${noise.join(" ")} ${words}` : words;
        };
        const talk = negotiate(curator, input(wanted, { held: good, doubted, tries }));
        expect(talk.tries.length).toBeLessThanOrEqual(tries);
        const kept = good.filter((text) => wanted.includes(text));
        for (const [texts] of talk.tries) expect(texts).toEqual(expect.arrayContaining(kept));
        const { outcome } = talk;
        if (outcome.kind === "refused") throw new Error("what is held, and the key, were never refused");
        const last = talk.tries.findLast(([, taken]) => taken)?.[0];
        expect(outcome.prefixes.map(({ text }) => text)).toEqual([...(last ?? [])]);
        expect(
          [...outcome.prefixes, ...outcome.refused.map(({ prefix }) => prefix)]
            .map(({ text }) => text)
            .toSorted(),
        ).toEqual(wanted.toSorted());
        // Nothing is said to be refused for sure that is not, unless the Curator's own words say so.
        if (!misleads) {
          for (const { prefix, certain, words } of outcome.refused) {
            expect(words).not.toBe("");
            if (certain) expect(bad).toContain(prefix.text);
          }
        }
      }),
      { numRuns: 300 },
    );
  });

  test("one bad prefix of up to 32 is found without any hint, and up to six that are named one by one", () => {
    assert(
      property(integer({ min: 1, max: 32 }), integer({ min: 0, max: 31 }), (count, at) => {
        const wanted = pods(count);
        const bad = wanted[at % count] ?? "";
        const { outcome } = negotiate(silent([bad]), input(wanted));
        expect(outcome).toMatchObject({ kind: "taken", refused: [{ prefix: { text: bad }, certain: true }] });
      }),
      { numRuns: 200 },
    );
    assert(
      property(uniqueArray(constantFrom(...pods(200)), { minLength: 1, maxLength: 6 }), (bad) => {
        const { outcome } = negotiate(naming(bad), input([host, ...pods(200)]));
        const left = outcome.kind === "taken" ? outcome.refused.map(({ prefix }) => prefix.text) : [];
        expect(left.toSorted()).toEqual(bad.toSorted());
      }),
      { numRuns: 300 },
    );
  });

  test("tried again and again, everything that is taken is announced in the end", () => {
    assert(
      property(scenario, ({ wanted, bad, voice }) => {
        let held: readonly string[] = [];
        let refusedBefore: readonly RefusedPrefix[] = [];
        for (let round = 0; round < 60; round++) {
          const tries = round === 0 ? triesOfChange : triesOfRetry;
          const { outcome } = negotiate(voice(bad), input(wanted, { held, refusedBefore, tries }));
          if (outcome.kind === "refused") throw new Error("the key was never refused");
          held = outcome.prefixes.map(({ text }) => text);
          refusedBefore = outcome.refused;
        }
        expect(held).toEqual(wanted.filter((text) => !bad.includes(text)));
      }),
      { numRuns: 300 },
    );
  });
});
