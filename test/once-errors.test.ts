/** What is said of a time that ran out: what is missing, then this node's own problems, and nobody else's. */
import { expect, test } from "bun:test";
import type { NodeId } from "../src/core/node.ts";
import type { Problem } from "../src/core/problem.ts";
import { describeError } from "../src/errors.ts";
import { tooLate } from "../src/once-errors.ts";

const self = "a" as NodeId;

test.each<{ name: string; problems: readonly Problem[]; want: string }>([
  { name: "nothing is known to be wrong", problems: [], want: "Cannot finish within 5 s: one; two" },
  {
    name: "this node is refused, the Curator was away, and others have problems too",
    problems: [
      { kind: "curator-unreachable", message: "Cannot reach it" },
      { kind: "prefix-taken", nodeId: "b" as NodeId, message: "Cannot give it to b" },
      { kind: "announce-refused", nodeId: self, message: "The key is that of another node" },
    ],
    want: "Cannot finish within 5 s: one; two\n  because: The key is that of another node\n  because: Cannot reach it",
  },
  {
    name: "more is wrong than can be shown",
    problems: Array.from({ length: 9 }, (_, at) => ({ kind: "source-failed", message: `Problem ${at}` })),
    want: [
      "Cannot finish within 5 s: one; two",
      ...Array.from({ length: 7 }, (_, at) => `  because: Problem ${at}`),
    ].join("\n"),
  },
])("tooLate() when $name", ({ problems, want }) => {
  const error = tooLate("finish", { timeoutMs: 5_000, missing: ["one", "two"], problems, self });
  expect([describeError(error), error.exit]).toEqual([want, 75]);
});
