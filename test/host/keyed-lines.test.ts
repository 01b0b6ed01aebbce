/**
 * Lines that are found by their keys and compared as bytes, against a plain map of strings.
 */
import { expect, test } from "bun:test";
import * as fc from "fast-check";
import { KeyedLines, type NextLine } from "../../src/host/keyed-lines.ts";

/** Keys that begin alike, so that they meet in one place, beside others. */
const anyKey = fc
  .tuple(fc.constantFrom("", "alike-alike-", "alike-alike-alike-"), fc.integer({ min: 0, max: 200 }))
  .map(([start, number]) => `${start}${number}`.padEnd(44, "="));
const anyLines = fc.array(
  fc.tuple(anyKey, fc.constantFrom("", "\t0", "\t10", "\t1")).map(([key, rest]) => `${key}${rest}`),
  { maxLength: 300 },
);
const keyOf = (line: string): string => line.slice(0, 44);

/** Takes the text in, in pieces of this size; what it says of each line. */
function take(text: string, size: number, before?: KeyedLines): { lines: KeyedLines; said: NextLine[] } {
  const lines = new KeyedLines(before);
  const said: NextLine[] = [];
  const bytes = Buffer.from(text);
  for (let from = 0; from < bytes.length; from += size) {
    lines.push(bytes.subarray(from, from + size));
    for (let next = lines.next(before); next !== "none"; next = lines.next(before)) said.push(next);
  }
  return { lines, said };
}

test("KeyedLines says of each line what a map of strings would, in whatever pieces it comes", () => {
  fc.assert(
    fc.property(anyLines, anyLines, fc.integer({ min: 1, max: 5_000 }), (first, second, size) => {
      const known = new Map<string, string>();
      for (const line of first) if (!known.has(keyOf(line))) known.set(keyOf(line), line);
      const { lines: before } = take(`${first.join("\n")}\n`, size);
      expect(before.count).toBe(known.size);

      const now = new Map<string, string>();
      const want = second.map((line): NextLine => {
        if (now.has(keyOf(line))) return "double";
        now.set(keyOf(line), line);
        return known.get(keyOf(line)) === line ? "same" : "other";
      });
      const { lines, said } = take(`${second.join("\n")}\n`, size, before.fit());
      expect(said).toEqual(want);
      for (const key of [...known.keys(), ...now.keys()]) {
        expect([lines.fit().lineOf(key), before.lineOf(key)]).toEqual([now.get(key), known.get(key)]);
      }
    }),
  );
});

test("KeyedLines passes over empty lines, and waits for the end of the last one", () => {
  const { lines, said } = take("\n\na\n\nb\nc", 1);
  expect([said, lines.text, lines.restLength]).toEqual([["other", "other"], "b", 1]);
  expect([lines.lineOf("a"), lines.lineOf("c")]).toEqual(["a", undefined]);
});
