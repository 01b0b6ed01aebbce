/**
 * What every reader of foreign bytes is held to: it returns, in good time, a value that can be shown, or throws one of
 * the errors that this program throws on purpose; and no word of either does anything to a terminal or tells a secret.
 */
import { expect } from "bun:test";
import { inspect } from "node:util";
import * as fc from "fast-check";
import { ClusternetError, describeError } from "../../src/errors.ts";
import { long } from "../lab/long.ts";

/** Made by `wg genkey` for tests only. */
export const secret = "MOT4smwdQxqEH3MUoySfGckRqjJcoPfqB6jKN6xBS2I=";

/** A piece of the secret by which it is known, however it was cut: damage leaves most of these whole. */
const pieces = [secret.slice(0, 14), secret.slice(14, 28), secret.slice(28, 42)];

/** What moves a cursor, ends a line or turns text around. */
// oxlint-disable-next-line no-control-regex -- finding control characters is the purpose
const unsafe = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/;

/** For a reading of some kilobytes, on a machine that does other things too. */
const limitMs = 8_000;

/** How many inputs a reader gets; `cost` is that of one in comparison with parsing a line or two. */
export function runsOf(cost: number): number {
  return Math.ceil((long ? 20_000 : 1_500) / cost);
}

/** Fails unless the text may be shown to anybody, on any terminal. */
export function expectShowable(text: string): void {
  expect(unsafe.exec(text)?.[0]).toBeUndefined();
  expectNoSecret(text);
}

function expectNoSecret(text: string): void {
  expect(pieces.filter((piece) => text.includes(piece))).toEqual([]);
}

/** Runs a reader once. Returns what it read, or undefined when it refused in an acceptable way. */
export async function readOnce<Value>(read: () => Value | Promise<Value>): Promise<Value | undefined> {
  const startMs = performance.now();
  try {
    const value = await read();
    expectSound(value);
    return value;
  } catch (error) {
    if (!(error instanceof ClusternetError)) throw error;
    for (const line of describeError(error).split("\n")) expectShowable(line);
    expectShowable(error.message);
    return undefined;
  } finally {
    expect(performance.now() - startMs).toBeLessThan(limitMs);
  }
}

/** A value with NaN or half an MTU in it, or a message that cannot be shown, is no value. */
function expectSound(value: unknown): void {
  const seen = new Set<object>();
  const walk = (each: unknown, name: string): void => {
    if (typeof each === "number") expect(`${name} ${Number.isInteger(each)}`).toBe(`${name} true`);
    if (typeof each === "string" && ["message", "reason"].includes(name)) expectShowable(each);
    if (typeof each !== "object" || each === null || seen.has(each) || ArrayBuffer.isView(each)) return;
    seen.add(each);
    const entries = each instanceof Map ? each.entries() : Object.entries(each);
    for (const [key, inside] of entries) walk(inside, String(key));
  };
  walk(value, "");
  expectNoSecret(inspect(value, { depth: 10 }));
}

/** Holds a reader to all of it, for inputs of this kind. */
export async function holdToIt<Input>(
  input: fc.Arbitrary<Input>,
  read: (input: Input) => unknown,
  cost = 1,
): Promise<void> {
  await fc.assert(
    fc.asyncProperty(input, async (each) => {
      await readOnce(() => read(each));
    }),
    { numRuns: runsOf(cost) },
  );
}
