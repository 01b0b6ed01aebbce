/**
 * The shared map, against a plain map that is copied at every step.
 */
import { expect, test } from "bun:test";
import * as fc from "fast-check";
import { SharedMap } from "../../src/core/shared-map.ts";

/** Few keys, so that they come, go and come again; many of them at once, so that layers become one. */
const anyKey = fc.oneof(fc.nat(9), fc.nat(300));
const byNumber = (a: number, b: number): number => a - b;
const anyEdit = fc.array(fc.tuple(anyKey, fc.option(fc.nat(3), { nil: undefined })), { maxLength: 120 });

test("SharedMap holds what a plain map would, and so does every map that it was made of", () => {
  fc.assert(
    fc.property(
      fc.array(fc.tuple(anyKey, fc.nat(3))),
      fc.array(anyEdit, { maxLength: 8 }),
      (first, edits) => {
        let plain = new Map(first);
        let shared = SharedMap.of(new Map(first));
        const all: { readonly shared: SharedMap<number, number>; readonly plain: Map<number, number> }[] = [];
        for (const edit of edits) {
          all.push({ shared, plain });
          plain = new Map(plain);
          const draft = shared.edit();
          for (const [key, value] of edit) {
            if (value === undefined) {
              plain.delete(key);
              draft.delete(key);
            } else {
              plain.set(key, value);
              draft.set(key, value);
            }
            expect(draft.get(key)).toBe(plain.get(key));
          }
          shared = draft.finish();
        }
        for (const each of [...all, { shared, plain }]) {
          expect(new Map(each.shared)).toEqual(each.plain);
          expect(each.shared.size).toBe(each.plain.size);
          expect([...each.shared.keys()].filter((key) => !each.shared.has(key))).toEqual([]);
          expect([...each.shared.values()].toSorted(byNumber)).toEqual(
            [...each.plain.values()].toSorted(byNumber),
          );
          for (let key = 0; key < 10; key++) {
            expect([each.shared.get(key), each.shared.has(key)]).toEqual([
              each.plain.get(key),
              each.plain.has(key),
            ]);
          }
        }
      },
    ),
    { numRuns: 200 },
  );
});

test("edit() gives the same map back when it ends without a change", () => {
  const map = SharedMap.of(new Map([["a", 1]]));
  const draft = map.edit();
  draft.set("a", 1);
  draft.delete("b");
  expect(draft.finish()).toBe(map);
});
