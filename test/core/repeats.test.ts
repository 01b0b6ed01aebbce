/** Repeats on a live stream: when they are reason to suspect that tombstones were lost. */
import { describe, expect, test } from "bun:test";
import { foldEvent, foldStreamOpened, initialNodeSet } from "../../src/core/node-set.ts";
import type { NodeId } from "../../src/core/node.ts";
import { RepeatCounter, repeatedNodes } from "../../src/core/repeats.ts";
import { recordedEvents } from "./watch-fixture.ts";

/** Repeats as "node@seconds"; the stream was opened at 0. Answers which of them were suspicious. */
function suspicious(known: number, repeats: readonly string[], streamOpenedMs = 0): string[] {
  const counter = new RepeatCounter();
  return repeats.filter((repeat) => {
    const [nodeId, seconds] = repeat.split("@");
    return counter.isSuspicious({
      nodeId: nodeId as NodeId,
      known,
      nowMs: Number(seconds) * 1000,
      streamOpenedMs,
    });
  });
}

describe("RepeatCounter", () => {
  test.each<{ name: string; known: number; repeats: string[]; want: string[] }>([
    {
      name: "suspects at half of the known nodes",
      known: 6,
      repeats: ["a@100", "b@101", "c@102"],
      want: ["c@102"],
    },
    { name: "does not suspect below half", known: 7, repeats: ["a@100", "b@101", "c@102"], want: [] },
    { name: "never suspects below three nodes", known: 2, repeats: ["a@100", "b@101", "a@102"], want: [] },
    {
      name: "counts a node once however often it comes",
      known: 6,
      repeats: ["a@100", "a@101", "a@102", "b@103", "b@104"],
      want: [],
    },
    {
      name: "counts together what came within ten seconds",
      known: 6,
      repeats: ["a@100", "b@105", "c@110"],
      want: ["c@110"],
    },
    {
      name: "forgets what is older than ten seconds",
      known: 6,
      repeats: ["a@100", "b@105", "c@110.1"],
      want: [],
    },
    {
      name: "counts a node from its last repeat",
      known: 6,
      repeats: ["a@100", "b@105", "a@106", "c@112"],
      want: ["c@112"],
    },
    {
      name: "ignores the first minute of a stream",
      known: 3,
      repeats: ["a@57", "b@58", "c@59", "a@61", "b@61"],
      want: [],
    },
    {
      name: "looks again right after the first minute",
      known: 3,
      repeats: ["a@60", "b@60", "c@60"],
      want: ["c@60"],
    },
    {
      name: "suspects at most once in ten minutes",
      known: 3,
      repeats: [
        "a@60",
        "b@60",
        "c@60",
        "a@300",
        "b@300",
        "c@300",
        "a@659",
        "b@659",
        "c@659",
        "a@660",
        "b@660",
        "c@660",
      ],
      want: ["c@60", "c@660"],
    },
  ])("$name", ({ known, repeats, want }) => {
    expect(suspicious(known, repeats)).toEqual(want);
  });

  test("measures the first minute from where the stream was opened", () => {
    expect(suspicious(3, ["a@100", "b@100", "c@100"], 50_000)).toEqual([]);
  });
});

describe("with the real Curator's stream 7, which lost a tombstone", () => {
  test("repeats are the nodes sent again unchanged, and the third of five is suspicious", () => {
    const own = "metropolis-9a41c3795f4e6863b51eceaf11b545c8" as NodeId;
    const counter = new RepeatCounter();
    let set = foldStreamOpened(initialNodeSet(own, []));
    let nowMs = 120_000;
    const seen: string[] = [];
    for (const event of recordedEvents(7)) {
      for (const nodeId of repeatedNodes(set, event)) {
        const verdict = counter.isSuspicious({ nodeId, known: set.current.size, nowMs, streamOpenedMs: 0 });
        seen.push(`${nodeId.slice(11, 15)} ${verdict}`);
      }
      set = foldEvent(set, event, { nowMs, peers: new Set() });
      nowMs += 100;
    }
    expect(seen).toEqual(["9a41 false", "b777 false", "d25b true", "db55 false"]);
  });

  test("stream 2, where nodes change one at a time, is never suspicious", () => {
    const counter = new RepeatCounter();
    let set = foldStreamOpened(initialNodeSet("a" as NodeId, []));
    const seen: boolean[] = [];
    for (const event of recordedEvents(2)) {
      for (const nodeId of repeatedNodes(set, event)) {
        seen.push(
          counter.isSuspicious({ nodeId, known: set.current.size, nowMs: 120_000, streamOpenedMs: 0 }),
        );
      }
      set = foldEvent(set, event, { nowMs: 120_000, peers: new Set() });
    }
    expect(seen).toEqual([false]);
  });
});
