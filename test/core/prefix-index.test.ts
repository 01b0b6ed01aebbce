/**
 * The index of prefixes, against looking at every prefix.
 */
import { expect, test } from "bun:test";
import * as fc from "fast-check";
import type { NodeId } from "../../src/core/node.ts";
import {
  maskPrefix,
  overlaps,
  parseInterfacePrefix,
  parsePrefix,
  type Prefix,
} from "../../src/core/prefix.ts";
import { PrefixIndex } from "../../src/core/prefix-index.ts";

const owners = ["a", "b", "c"] as readonly string[] as readonly NodeId[];

/** Few addresses and all lengths, so that prefixes meet often. */
const anyPrefix = fc.oneof(
  fc
    .tuple(fc.integer({ min: 0, max: 32 }), fc.integer({ min: 0, max: 7 }), fc.constantFrom(0, 128))
    .map(([length, low, high]) => maskPrefix(parseInterfacePrefix(`10.192.${high}.${low}/${length}`))),
  fc
    .tuple(fc.integer({ min: 0, max: 128 }), fc.constantFrom("fd00::", "fd00::8000:0:0:1", "fd80::3"))
    .map(([length, address]) => maskPrefix(parseInterfacePrefix(`${address}/${length}`))),
);
const anyStep = fc.record({
  verb: fc.constantFrom("add", "add", "delete"),
  owner: fc.constantFrom(...owners),
  prefix: anyPrefix,
});

test("findOther() and collectOwners() find an overlap exactly when looking at every prefix does", () => {
  fc.assert(
    fc.property(
      fc.array(anyStep, { maxLength: 60 }),
      fc.array(anyPrefix, { maxLength: 10 }),
      (steps, asked) => {
        const index = new PrefixIndex();
        const held = new Map<string, { readonly owner: NodeId; readonly prefix: Prefix }>();
        for (const { verb, owner, prefix } of steps) {
          if (verb === "add") {
            index.add({ owner, prefix });
            held.set(`${owner} ${prefix.text}`, { owner, prefix });
          } else {
            index.delete({ owner, prefix });
            held.delete(`${owner} ${prefix.text}`);
          }
        }
        for (const prefix of [...asked, ...steps.map((step) => step.prefix)]) {
          const all = [...held.values()].filter((each) => overlaps(each.prefix, prefix));
          const collected = new Set<NodeId>();
          index.collectOwners(prefix, collected);
          expect(collected).toEqual(new Set(all.map(({ owner }) => owner)));
          for (const self of owners) {
            const others = all.filter(({ owner }) => owner !== self);
            const found = index.findOther(self, prefix);
            if (found === undefined) expect(others).toEqual([]);
            else
              expect(others.map(({ owner, prefix: { text } }) => `${owner} ${text}`)).toContain(
                `${found.owner} ${found.prefix.text}`,
              );
          }
        }
      },
    ),
    { numRuns: 300 },
  );
});

test("a prefix that two nodes hold stays held when one gives it up", () => {
  const index = new PrefixIndex();
  const [a, b, c] = owners;
  if (a === undefined || b === undefined || c === undefined) throw new Error("three owners");
  const prefix = parsePrefix("192.0.2.1/32");
  index.add({ owner: a, prefix });
  index.add({ owner: b, prefix });
  index.delete({ owner: a, prefix });
  expect(index.findOther(c, parsePrefix("192.0.2.0/24"))?.owner).toBe(b);
  index.delete({ owner: b, prefix });
  expect(index.findOther(c, parsePrefix("192.0.2.0/24"))).toBeUndefined();
});
