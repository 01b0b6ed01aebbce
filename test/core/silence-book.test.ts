/** For how long nothing came from each peer, by the bytes of one reading after the other. */
import { expect, test } from "bun:test";
import type { SeenPeer } from "../../src/core/host-state.ts";
import type { PublicKey } from "../../src/core/key.ts";
import { SilenceBook } from "../../src/core/silence-book.ts";
import { publicKeyOf } from "../fakes/wanted.ts";

/** Received bytes of the peers a, b, c … at so many milliseconds; one that is not there has none. */
type Look = readonly [atMs: number, ...bytes: readonly (number | undefined)[]];

function peersOf(bytes: readonly (number | undefined)[]): Map<PublicKey, SeenPeer> {
  return new Map(
    bytes.flatMap((receivedBytes, index) =>
      receivedBytes === undefined
        ? []
        : [
            [
              publicKeyOf(index + 1),
              {
                allowedIps: [],
                latestHandshakeSeconds: 0,
                receivedBytes,
                sentBytes: 0,
                hasPresharedKey: false,
              },
            ] as const,
          ],
    ),
  );
}

/** How long each peer was quiet at each look. */
function quiet(looks: readonly Look[]): readonly (readonly (number | "-")[])[] {
  const book = new SilenceBook();
  let before: ReadonlyMap<PublicKey, SeenPeer> | undefined;
  return looks.map(([atMs, ...bytes]) => {
    const peers = peersOf(bytes);
    const keys = new Set([...peers.keys(), ...(before?.keys() ?? [])]);
    const changed = [...keys].filter(
      (key) => peers.get(key)?.receivedBytes !== before?.get(key)?.receivedBytes,
    );
    book.note(peers, before, before === undefined ? undefined : changed, atMs);
    before = peers;
    return bytes.map((each, index) => (each === undefined ? "-" : book.get(publicKeyOf(index + 1))));
  });
}

test.each<{ name: string; looks: readonly Look[]; want: readonly (readonly (number | "-")[])[] }>([
  {
    name: "all begin with the first reading",
    looks: [
      [100, 0, 5],
      [400, 0, 5],
    ],
    want: [
      [0, 0],
      [300, 300],
    ],
  },
  {
    name: "a peer of which something came begins anew, the other does not",
    looks: [
      [100, 0, 5],
      [400, 0, 9],
      [600, 0, 9],
    ],
    want: [
      [0, 0],
      [300, 0],
      [500, 200],
    ],
  },
  {
    name: "a peer that comes later begins when it came, also when most are new with it",
    looks: [
      [100, 1],
      [200, 1, 0, 0, 0],
      [500, 1, 0, 0, 3],
    ],
    want: [[0], [100, 0, 0, 0], [400, 300, 300, 0]],
  },
  {
    name: "a peer that went and came again begins anew",
    looks: [
      [100, 1, 1, 1],
      [200, 1, undefined, 1],
      [300, 1, 1, 1],
      [400, 1, 1, 1],
    ],
    want: [
      [0, 0, 0],
      [100, "-", 100],
      [200, 0, 200],
      [300, 100, 300],
    ],
  },
])("SilenceBook: $name", ({ looks, want }) => {
  expect(quiet(looks)).toEqual(want);
});
