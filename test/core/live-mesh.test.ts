/**
 * The mesh kept up to date claim by claim, against `buildMesh` of all claims at once, which is what defines it.
 */
import { describe, expect, test } from "bun:test";
import * as fc from "fast-check";
import { judgeNode, type Claim } from "../../src/core/claim.ts";
import { LiveMesh } from "../../src/core/live-mesh.ts";
import { buildMesh, incumbentsOf, noIncumbents, samePeer, type Incumbents } from "../../src/core/mesh.ts";
import { parsePrefix, type Prefix } from "../../src/core/prefix.ts";
import { timed } from "../lab/usage.ts";
import { keyOf, nodeId, nodeOf, rules } from "./nodes.ts";

const self = nodeId("m-self");
/** Some before and some after this node's own. */
const ids = ["a", "b", "c", "d", "n", "o", "p", "x", "y"].map(nodeId);

const prefixTexts = [
  "10.192.2.0/24",
  "10.192.2.0/25",
  "10.192.2.128/25",
  "10.192.2.7/32",
  "10.192.3.0/24",
  "10.194.0.0/15",
  "10.194.4.0/24",
  "10.195.0.0/16",
  "10.195.7.0/26",
  "192.0.2.2/32",
  "fd00:c1:0:2::/64",
  "fd00:c1:0:2::7/128",
  "fd00:c1:0:10::/60",
  "10.192.1.0/24",
  "nonsense",
  // More problems than are kept of one node.
  ...Array.from({ length: 18 }, (_, at) => `198.51.100.${at}/32`),
];
const anyNode = fc
  .record({
    id: fc.constantFrom(...ids),
    publicKey: fc.constantFrom(...[2, 3, 4, 5, 6, 7].map(keyOf), "", "nonsense"),
    externalAddress: fc.constantFrom("192.0.2.2", "192.0.2.3", ""),
    prefixes: fc.oneof(
      { weight: 9, arbitrary: fc.subarray(prefixTexts.slice(0, 15), { maxLength: 4 }) },
      { weight: 1, arbitrary: fc.subarray(prefixTexts) },
    ),
  })
  .map(nodeOf);
const anyOwn = fc.subarray(["10.192.1.0/24", "10.194.4.128/25", "10.195.0.0/17", "192.0.2.2/32"]);
const anyStep = fc.oneof(
  { weight: 8, arbitrary: fc.record({ kind: fc.constant("set" as const), node: anyNode }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant("delete" as const), id: fc.constantFrom(...ids) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("own" as const), own: anyOwn }) },
  { weight: 4, arbitrary: fc.record({ kind: fc.constant("settle" as const), hold: fc.boolean() }) },
);

function largeClaim(number: number, key = number): Claim {
  const prefixes = Array.from({ length: 64 }, (_, at) => {
    const value = number * 64 + at;
    return `10.${192 + (value >> 16)}.${(value >> 8) & 255}.${value & 255}/32`;
  });
  return judgeNode(nodeOf({ id: `n${number}`, publicKey: keyOf(key), prefixes }), rules);
}

function claimOf(id: string, key: number, ...prefixes: readonly string[]): Claim {
  return judgeNode(nodeOf({ id, publicKey: keyOf(key), prefixes }), rules);
}

/** A sixteenth of ClusterNet, and a 512th of that. */
const wide = (number: number): string => `10.${192 + number * 2}.0.0/15`;
const small = (number: number): string => `10.${192 + (number >> 8)}.${number & 255}.0/24`;

describe("LiveMesh", () => {
  test("has what buildMesh() makes of all claims, whatever changed and whoever held it before", () => {
    fc.assert(
      fc.property(
        fc.array(anyNode, { maxLength: 6 }),
        fc.array(anyStep, { minLength: 10, maxLength: 60, size: "max" }),
        (before, steps) => {
          let incumbents: Incumbents = {
            prefixes: new Map(before.flatMap(({ id, prefixes }) => prefixes.map((text) => [text, id]))),
            keys: new Map(before.map(({ id }, at) => [keyOf(2 + at), id])),
          };
          const former = incumbents;
          const live = new LiveMesh(self, () => former);
          const claims = new Map<string, Claim>();
          let ownPrefixes: readonly Prefix[] = [];
          let last = live.settle();
          for (const step of steps) {
            if (step.kind === "set") {
              const claim = judgeNode(step.node, rules);
              claims.set(claim.nodeId, claim);
              live.set(claim);
            } else if (step.kind === "delete") {
              claims.delete(step.id);
              live.delete(step.id);
            } else if (step.kind === "own") {
              ownPrefixes = step.own.map(parsePrefix);
              live.setOwnPrefixes(ownPrefixes);
            } else {
              const whole = buildMesh({ claims: [...claims.values()], ownPrefixes, incumbents });
              const built = live.settle();
              expect(built).toEqual(whole);
              for (const peer of built.mesh.peers) {
                const old = last.mesh.peers.find(({ nodeId }) => nodeId === peer.nodeId);
                if (old !== undefined && samePeer(old, peer)) expect(peer).toBe(old);
              }
              last = built;
              if (!step.hold) continue;
              live.hold();
              incumbents = incumbentsOf(whole.mesh);
            }
          }
        },
      ),
      { numRuns: 400 },
    );
  });

  test("settle() gives the same mesh back when nothing came of what changed", () => {
    const live = new LiveMesh(self, () => noIncumbents);
    const node = nodeOf({ id: "b", prefixes: ["10.192.2.0/24"] });
    live.set(judgeNode(node, rules));
    const built = live.settle();
    live.set(judgeNode({ ...node, state: "standby" }, rules));
    live.delete(nodeId("c"));
    expect(live.settle()).toBe(built);
  });

  test("settle() does not go on through nodes that keep what they have when one claims all of them", () => {
    const claims = new Map<string, Claim>();
    const live = new LiveMesh(self, () => noIncumbents);
    const set = (each: Claim): void => {
      claims.set(each.nodeId, each);
      live.set(each);
    };
    for (let number = 0; number < 8_192; number++) set(claimOf(`n${number}`, number, small(number)));
    live.settle();
    live.hold();
    set(claimOf("a-wide", 90_000, ...Array.from({ length: 16 }, (_, number) => wide(number))));
    live.settle();
    live.hold();
    const incumbents = incumbentsOf(live.settle().mesh);
    // As wide ones that come later have to see: others than those that stand for all decide who goes first.
    set(claimOf("b-wide", 90_001, wide(0)));
    set(claimOf("c-free", 90_002, "fd00:c1:0:7::/64"));
    const ms = Array.from({ length: 9 }, (_, at) => {
      // What it gives up only the wide ones claim, and what it claims besides only they have.
      const next = claimOf(`n${at * 900}`, 80_000 + at, ...(at % 2 === 0 ? [] : [small(at * 900)]));
      return timed(() => {
        set(next);
        live.settle();
      }).processorMs;
    });
    expect(live.settle()).toEqual(buildMesh({ claims: [...claims.values()], ownPrefixes: [], incumbents }));
    expect(Math.min(...ms)).toBeLessThan(20);
  });

  test("settle() takes 10,000 nodes of 64 prefixes, and then one that changes in less than 20 ms", () => {
    const live = new LiveMesh(self, () => noIncumbents);
    for (let number = 0; number < 10_000; number++) live.set(largeClaim(number));
    expect(live.settle().mesh.peers.length).toBe(10_000);
    live.hold();
    // The first ones run before the code is compiled.
    const ms = Array.from({ length: 9 }, (_, at) => {
      const claim = largeClaim(at * 999, 20_000 + at);
      return timed(() => {
        live.set(claim);
        live.settle();
      }).processorMs;
    });
    expect(Math.min(...ms)).toBeLessThan(20);
  }, 30_000);
});
