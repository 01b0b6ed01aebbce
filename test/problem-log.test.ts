/** The book of problems: each is logged when it begins and when it ends, once, and keeps its time. */
import { expect, test } from "bun:test";
import type { NodeId } from "../src/core/node.ts";
import type { Problem, ProblemKind } from "../src/core/problem.ts";
import type { Logger } from "../src/log.ts";
import { ProblemLog } from "../src/problem-log.ts";

function book() {
  const lines: string[] = [];
  const at =
    (level: string): Logger["info"] =>
    (message, fields = {}) => {
      lines.push(`${level} ${message} ${JSON.stringify(fields)}`);
    };
  const log = { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
  let minute = 0;
  const problems = new ProblemLog(log, { wallTime: () => new Date(Date.UTC(2026, 11, 1, 12, minute++)) });
  return { problems, lines, taken: () => lines.splice(0) };
}

function problem(kind: ProblemKind, message: string, nodeId?: string): Problem {
  return { kind, message, ...(nodeId === undefined ? {} : { nodeId: nodeId as NodeId }) };
}

const lost = problem("curator-unreachable", "Cannot reach any Curator");
const takenB = problem("prefix-taken", "Cannot give 10.192.4.0/24", "b");

test("ProblemLog logs a problem when it begins and when it ends, and not on each pass", () => {
  const { problems, taken } = book();
  problems.replace("mesh", [takenB]);
  expect(taken()).toEqual(['warn Cannot give 10.192.4.0/24 {"problem":"prefix-taken","node":"b"}']);
  for (let pass = 0; pass < 5; pass++) problems.replace("mesh", [{ ...takenB }]);
  expect(taken()).toEqual([]);
  problems.replace("mesh", []);
  expect(taken()).toEqual([
    'info No longer: Cannot give 10.192.4.0/24 {"problem":"prefix-taken","node":"b"}',
  ]);
  expect(problems.current()).toEqual([]);
});

test("ProblemLog keeps since when a problem began, and starts anew when it comes back", () => {
  const { problems } = book();
  const since = (): (string | undefined)[] =>
    problems.current().map((each) => `${each.message} ${each.since.toISOString().slice(14, 16)}`);
  problems.replace("mesh", [takenB]);
  problems.replace("mesh", [takenB, lost]);
  expect(since()).toEqual(["Cannot reach any Curator 01", "Cannot give 10.192.4.0/24 00"]);
  problems.replace("mesh", [lost]);
  problems.replace("mesh", [lost, takenB]);
  expect(since()).toEqual(["Cannot reach any Curator 01", "Cannot give 10.192.4.0/24 03"]);
});

test("ProblemLog keeps the sources apart, and one problem of two sources ends with the last", () => {
  const { problems, taken } = book();
  problems.replace("mesh", [takenB, lost]);
  problems.replace("curator", [lost]);
  expect(taken().length).toBe(2);
  problems.replace("mesh", []);
  expect(taken()).toEqual([
    'info No longer: Cannot give 10.192.4.0/24 {"problem":"prefix-taken","node":"b"}',
  ]);
  expect(problems.current().map(({ kind }) => kind)).toEqual(["curator-unreachable"]);
  problems.replace("curator", []);
  expect(taken()).toEqual(['info No longer: Cannot reach any Curator {"problem":"curator-unreachable"}']);
});

test("ProblemLog takes the same problem twice in one list as one", () => {
  const { problems, lines } = book();
  problems.replace("mesh", [takenB, takenB]);
  expect([lines.length, problems.current().length]).toEqual([1, 1]);
});

test("ProblemLog logs thousands at once as twenty and a count, and lists them all in order", () => {
  const { problems, taken } = book();
  const many = Array.from({ length: 3000 }, (_, index) =>
    problem("key-invalid", `Cannot use key ${index}`, `n${String(2999 - index).padStart(4, "0")}`),
  );
  problems.replace("mesh", many);
  const begun = taken();
  expect(begun.length).toBe(21);
  expect(begun[0]).toBe('warn Cannot use key 0 {"problem":"key-invalid","node":"n2999"}');
  expect(begun[20]).toBe('warn 2980 more problems began; all that last are in the status {"count":2980}');
  const ids = problems.current().map(({ nodeId }) => String(nodeId));
  expect(ids).toEqual(ids.toSorted());
  expect(ids.length).toBe(3000);
  problems.replace("mesh", []);
  expect(taken()[20]).toBe('warn 2980 more problems ended; all that last are in the status {"count":2980}');
});
