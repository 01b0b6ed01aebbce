/**
 * Nodes that come again.
 */
import { expect, test } from "bun:test";
import * as fc from "fast-check";
import { withTextsOf, type Node } from "../../src/core/node.ts";
import { nodeIdOf, publicKeyOf } from "../fakes/wanted.ts";

const id = nodeIdOf("b");

const anyNode = fc
  .record({
    state: fc.constantFrom("unknown", "up", "standby"),
    publicKey: fc.constantFrom("", "KEY", "OTHER"),
    externalAddress: fc.constantFrom("", "192.0.2.2", "192.0.2.3"),
    prefixes: fc.array(fc.constantFrom("10.192.2.0/24", "192.0.2.2/32", "nonsense", ""), { maxLength: 12 }),
    curatorPort: fc.constantFrom(undefined, 7835),
  })
  .map(({ curatorPort, ...each }): Node => {
    const port = curatorPort === undefined ? {} : { curatorPort };
    return { id, ...each, ...port, prefixCount: each.prefixes.length, consensusMember: false };
  });

test("withTextsOf() gives the node as it comes, whatever was known of it", () => {
  fc.assert(
    fc.property(anyNode, anyNode, (known, node) => {
      // What was parsed of other texts does not come along.
      const parsed = { publicKey: publicKeyOf(2), address: undefined, prefixes: [] };
      expect(withTextsOf({ ...known, parsed }, node)).toEqual(node);
    }),
  );
});
