/**
 * `Prefixes` as the Go package documents it: one test a sentence, and the recorded results of the Go code.
 */
import { describe, expect, test } from "bun:test";
import { Prefixes } from "../src/prefixes.ts";
import golden from "./fixtures/prefixes.json";

const set = (texts: readonly string[] | null | undefined): Prefixes | undefined =>
  texts === null || texts === undefined ? undefined : new Prefixes(texts);
const texts = (prefixes: Prefixes): readonly string[] => Array.from(prefixes, (each) => each.text);

describe("Prefixes, recorded from Go", () => {
  test.each(golden.sets.map((each) => [JSON.stringify([each.a, each.b]), each] as const))(
    "%s",
    (_name, each) => {
      const a = set(each.a);
      const b = set(each.b);
      expect(a?.toString() ?? "").toBe(each.string_a);
      expect(b?.toString() ?? "").toBe(each.string_b);
      expect((a ?? new Prefixes()).equal(b)).toBe(each.equal);
      expect((b ?? new Prefixes()).equal(a)).toBe(each.equal);
      if (a !== undefined && b !== undefined) {
        a.update(b);
        expect(texts(a)).toEqual(each.a_updated_with_b ?? []);
      }
    },
  );

  test("there are 30 of them", () => expect(golden.sets).toHaveLength(30));
});

describe("Prefixes.update()", () => {
  test("copies all prefixes of the other, merging duplicates, and returns nothing", () => {
    const own = new Prefixes(["10.200.1.0/24", "10.200.0.0/24"]);
    expect(own.update(new Prefixes(["10.200.2.0/24", "10.200.1.0/24", "10.200.2.0/24"]))).toBeUndefined();
    expect(texts(own)).toEqual(["10.200.1.0/24", "10.200.0.0/24", "10.200.2.0/24"]);
  });

  test("leaves the other as it was", () => {
    const other = new Prefixes(["10.200.2.0/24"]);
    new Prefixes(["10.200.0.0/24"]).update(other);
    expect(texts(other)).toEqual(["10.200.2.0/24"]);
  });

  test("with itself changes nothing", () => {
    const own = new Prefixes(["10.200.1.0/24", "10.200.1.0/24"]);
    own.update(own);
    expect(texts(own)).toEqual(["10.200.1.0/24", "10.200.1.0/24"]);
  });
});

describe("new Prefixes()", () => {
  test("refuses a text that is no prefix, and says which", () => {
    expect(() => new Prefixes(["10.200.0.0/33"])).toThrow('Cannot parse prefix "10.200.0.0/33"');
  });

  test("without an argument is the empty set, which equals an absent one", () => {
    expect(new Prefixes().equal(undefined)).toBe(true);
    expect(new Prefixes().toString()).toBe("");
  });
});
