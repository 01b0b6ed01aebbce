/**
 * The peers of an interface after changes, against WireGuard's rule done one change at a time.
 */
import { expect, test } from "bun:test";
import * as fc from "fast-check";
import type { PeerChange, SeenPeer } from "../../src/core/host-plan.ts";
import type { PublicKey } from "../../src/core/key.ts";
import { SeenPeers } from "../../src/core/seen-peers.ts";
import { publicKeyOf } from "../fakes/wanted.ts";

const texts = ["10.192.2.0/24", "10.192.3.0/24", "10.192.4.0/24", "fd00:2::/64"];
const anyTexts = fc.subarray(texts).map((each) => each.toSorted());

const anyChange = fc
  .record({
    key: fc.integer({ min: 2, max: 6 }),
    what: fc.constantFrom("prefixes", "prefixes", "endpoint", "remove"),
    allowedIps: anyTexts,
  })
  .map(({ key, what, allowedIps }): PeerChange => {
    const publicKey = publicKeyOf(key);
    if (what === "remove") return { publicKey, remove: true };
    return what === "endpoint" ? { publicKey, endpoint: "192.0.2.9:7838" } : { publicKey, allowedIps };
  });

function prefixesOf(peers: ReadonlyMap<PublicKey, SeenPeer>): ReadonlyMap<PublicKey, readonly string[]> {
  return new Map([...peers].map(([key, { allowedIps }]) => [key, allowedIps]));
}

/** Whoever is given a prefix last has it. */
function give(peers: Map<PublicKey, readonly string[]>, change: PeerChange): void {
  const { publicKey, allowedIps } = change;
  if (change.remove === true) {
    peers.delete(publicKey);
    return;
  }
  for (const text of allowedIps ?? []) {
    for (const [key, has] of peers)
      peers.set(
        key,
        has.filter((each) => each !== text),
      );
  }
  peers.set(publicKey, allowedIps ?? peers.get(publicKey) ?? []);
}

test("fold() gives a prefix to whoever is set with it last, also when several changes are one", () => {
  fc.assert(
    fc.property(fc.array(fc.array(anyChange, { maxLength: 5 }), { maxLength: 8 }), (steps) => {
      let peers = SeenPeers.of(new Map());
      const want = new Map<PublicKey, readonly string[]>();
      for (const changes of steps) {
        const before = prefixesOf(peers);
        const after = peers.fold(changes);
        expect(prefixesOf(peers)).toEqual(before);
        peers = after;
        for (const change of changes) give(want, change);
        expect(prefixesOf(peers)).toEqual(want);
      }
    }),
    { numRuns: 500 },
  );
});

/** One mesh: who has which prefixes, none of them two. */
const anyMesh = fc
  .tuple(fc.subarray([2, 3, 4, 5, 6], { minLength: 1 }), fc.array(fc.nat(4), { minLength: 4, maxLength: 4 }))
  .map(([numbers, owners]) => {
    const ownerOf = (at: number): number => numbers[(owners[at] ?? 0) % numbers.length] ?? 0;
    const prefixes = (number: number): readonly string[] => texts.filter((_, at) => ownerOf(at) === number);
    return new Map(numbers.map((number) => [publicKeyOf(number), prefixes(number).toSorted()]));
  });

test("fold() of the way from one mesh to the next needs no look at the peers that stay as they are", () => {
  fc.assert(
    fc.property(fc.array(anyMesh, { minLength: 1, maxLength: 8 }), (meshes) => {
      let peers = SeenPeers.of(new Map());
      for (const mesh of meshes) {
        const gone = [...peers.keys()].filter((publicKey) => !mesh.has(publicKey));
        const other = [...mesh].filter(
          ([publicKey, allowedIps]) => peers.get(publicKey)?.allowedIps.join() !== allowedIps.join(),
        );
        const changes: PeerChange[] = [
          ...gone.map((publicKey) => ({ publicKey, remove: true as const })),
          ...other.map(([publicKey, allowedIps]) => ({ publicKey, allowedIps })),
        ];
        peers = peers.fold(changes, mesh.size);
        expect(prefixesOf(peers)).toEqual(mesh);
      }
    }),
    { numRuns: 200 },
  );
});
