/** Handshakes by the time of day that is now, whatever was done to the clock since they were made. */
import { expect, test } from "bun:test";
import { HandshakeBook, type LookTime } from "../../src/core/handshake-book.ts";
import type { SeenPeer } from "../../src/core/host-state.ts";
import type { PublicKey } from "../../src/core/key.ts";
import { publicKeyOf } from "../fakes/wanted.ts";

const day = 24 * 60 * 60;

/** One look, so many seconds after the start: handshakes as `wg` tells them, and by how much the clock has been set. */
interface Look {
  readonly at: number;
  readonly set?: number;
  readonly wg: readonly number[];
}

/** The start is at 1,000,000 s of a clock that nobody has set. */
const start = 1_000_000;

/** How old each handshake is told to be, at each look; to a book that is told which peers changed or to one that is not. */
function ages(
  looks: readonly Look[],
  { tells }: { tells: boolean },
): readonly (readonly (number | "never")[])[] {
  const book = new HandshakeBook();
  return looks.map(({ at, set = 0, wg }, index) => {
    const before = looks[index - 1]?.wg;
    const most = Math.max(wg.length, before?.length ?? 0);
    const changed = Array.from({ length: most }, (_, peer) => peer)
      .filter((peer) => wg[peer] !== before?.[peer])
      .map((peer) => publicKeyOf(peer + 1));
    const look = lookAt(at, set);
    return agesOf(book.note(peersOf(wg), look, tells && before !== undefined ? changed : undefined), look);
  });
}

function lookAt(at: number, set: number): LookTime {
  return { nowMs: at * 1_000, wallSeconds: start + at + set, timeSetMs: set * 1_000 };
}

function peersOf(wg: readonly number[]): Map<PublicKey, SeenPeer> {
  return new Map(
    wg.map((latestHandshakeSeconds, index) => [
      publicKeyOf(index + 1),
      { allowedIps: [], latestHandshakeSeconds, receivedBytes: 0, sentBytes: 0, hasPresharedKey: false },
    ]),
  );
}

function agesOf(
  peers: ReadonlyMap<PublicKey, SeenPeer>,
  { wallSeconds }: LookTime,
): readonly (number | "never")[] {
  return [...peers.values()].map(({ latestHandshakeSeconds: seconds }) =>
    seconds === 0 ? "never" : wallSeconds - seconds,
  );
}

test.each<{ name: string; looks: readonly Look[]; want: readonly (readonly (number | "never")[])[] }>([
  {
    name: "while nobody sets the clock",
    looks: [
      { at: 10, wg: [start, start + 5] },
      { at: 70, wg: [start, start + 65] },
    ],
    want: [
      [10, 5],
      [70, 5],
    ],
  },
  {
    name: "when it is set forward by a day, and when it is as it was again",
    looks: [
      { at: 10, wg: [start] },
      { at: 20, set: day, wg: [start] },
      { at: 30, wg: [start] },
    ],
    want: [[10], [20], [30]],
  },
  {
    name: "when it is set back by a day",
    looks: [
      { at: 10, wg: [start] },
      { at: 20, set: -day, wg: [start] },
    ],
    want: [[10], [20]],
  },
  {
    name: "of a new one that was made after the clock was set, beside an old one",
    looks: [
      { at: 10, wg: [start, start] },
      { at: 20, set: day, wg: [start, start + day + 17] },
      { at: 30, set: day, wg: [start, start + day + 17] },
    ],
    want: [
      [10, 10],
      [20, 3],
      [30, 13],
    ],
  },
  {
    name: "of a new one that was made just before the clock was set forward",
    looks: [
      { at: 10, wg: [start] },
      { at: 20, set: day, wg: [start + 14] },
      { at: 30, set: day, wg: [start + 14] },
    ],
    want: [[10], [6], [16]],
  },
  {
    name: "of a new one that was made just before the clock was set back",
    looks: [
      { at: 10, wg: [start] },
      { at: 20, set: -day, wg: [start + 14] },
    ],
    want: [[10], [6]],
  },
  {
    name: "of none",
    looks: [
      { at: 10, wg: [0] },
      { at: 20, set: day, wg: [0] },
    ],
    want: [["never"], ["never"]],
  },
  {
    name: "of a peer that was away meanwhile, as `wg` tells it",
    looks: [
      { at: 10, wg: [start] },
      { at: 20, wg: [] },
      { at: 30, set: day, wg: [start] },
    ],
    want: [[10], [], [day + 30]],
  },
])("HandshakeBook tells the right age $name", ({ looks, want }) => {
  expect(ages(looks, { tells: false })).toEqual(want);
  expect(ages(looks, { tells: true })).toEqual(want);
});

test.each<{ name: string; others: readonly Look[]; want: readonly (readonly (number | "never")[])[] }>([
  {
    name: "one that is newer than what is noted",
    others: [{ at: 40, set: day, wg: [start, start + day + 35, 0] }],
    want: [[40, 5, "never"]],
  },
  {
    name: "one that is older than what is noted",
    others: [{ at: 20, set: day, wg: [start, start + day + 15, 0] }],
    want: [[20, 5, "never"]],
  },
  {
    name: "one with a peer that is gone again when the next is noted",
    others: [{ at: 40, set: day, wg: [start, start + day + 25, 0, start + day + 39] }],
    want: [[40, 15, "never", 1]],
  },
  {
    name: "several, one after the other",
    others: [
      { at: 40, set: day, wg: [start, start + day + 35, start + day + 36] },
      { at: 35, set: day, wg: [start, start + day + 25, 0] },
    ],
    want: [
      [40, 5, 4],
      [35, 10, "never"],
    ],
  },
])("HandshakeBook tells the right age of $name, and of the next all the same", ({ others, want }) => {
  const book = new HandshakeBook();
  book.note(peersOf([start, start + 8, 0]), lookAt(10, 0));
  book.note(peersOf([start, start + day + 25, 0]), lookAt(30, day), [publicKeyOf(2)]);
  const told = others.map(({ at, set = 0, wg }) =>
    agesOf(book.tell(peersOf(wg), lookAt(at, set)), lookAt(at, set)),
  );
  expect(told).toEqual([...want]);
  // A reader that is told of no change: what it showed last is what counts.
  const look = lookAt(50, 2 * day);
  expect(agesOf(book.note(peersOf([start, start + day + 25, 0]), look, []), look)).toEqual([50, 25, "never"]);
  const back = peersOf([start, start + day + 25, 0, start + 3 * day + 50]);
  const later = lookAt(60, 3 * day);
  expect(agesOf(book.note(back, later, [publicKeyOf(4)]), later)).toEqual([60, 35, "never", 10]);
});

test("HandshakeBook gives the same map back while nobody sets the clock, and when it is only adjusted", () => {
  const peers = peersOf([start]);
  const book = new HandshakeBook();
  for (const timeSetMs of [0, 0, 1_400]) {
    const look = { nowMs: 0, wallSeconds: start + 9, timeSetMs };
    expect([book.note(peers, look), book.tell(peers, look)].every((told) => told === peers)).toBe(true);
  }
});
