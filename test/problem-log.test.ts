/** The book of problems: each is logged when it begins and when it ends, once, and keeps its time. */
import { expect, test } from "bun:test";
import type { NodeId } from "../src/core/node.ts";
import type { Problem, ProblemKind } from "../src/core/problem.ts";
import type { Logger } from "../src/log.ts";
import { ProblemLog } from "../src/problem-log.ts";
import { FakeClock } from "./fakes/clock.ts";

function book() {
  const lines: string[] = [];
  const at =
    (level: string): Logger["info"] =>
    (message, fields = {}) => {
      lines.push(`${level} ${message} ${JSON.stringify(fields)}`);
    };
  const log = { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
  const clock = new FakeClock();
  return { problems: new ProblemLog(log, clock), lines, clock, taken: () => lines.splice(0) };
}

function problem(kind: ProblemKind, message: string, nodeId?: string): Problem {
  return { kind, message, ...(nodeId === undefined ? {} : { nodeId: nodeId as NodeId }) };
}

const lost = problem("curator-unreachable", "Cannot reach any Curator");
const takenB = problem("prefix-taken", "Cannot give 10.192.4.0/24", "b");
const takenC = problem("prefix-taken", "Cannot give 10.192.5.0/24", "c");

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

test("ProblemLog keeps since when a problem began, and starts anew when it comes back", async () => {
  const { problems, clock } = book();
  const since = (): (string | undefined)[] =>
    problems.current().map((each) => `${each.message} ${each.since.toISOString().slice(14, 16)}`);
  problems.replace("mesh", [takenB]);
  await clock.advance(60_000);
  problems.replace("mesh", [takenB, lost]);
  expect(since()).toEqual(["Cannot reach any Curator 01", "Cannot give 10.192.4.0/24 00"]);
  await clock.advance(60_000);
  problems.replace("mesh", [lost]);
  await clock.advance(60_000);
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

/** Sixteen bad prefixes of one node, others at every turn. */
function badPrefixes(turn: number, nodeId?: string): readonly Problem[] {
  return Array.from({ length: 16 }, (_, index) =>
    problem("prefix-malformed", `Cannot use prefix ${turn}.${index}`, nodeId),
  );
}

test("ProblemLog lets a node that changes its bad data all the time have 20 lines a minute, and tells the rest in one", async () => {
  const { problems, taken, clock } = book();
  const perMinute: string[][] = [];
  let turn = 0;
  for (let minute = 0; minute < 3; minute++) {
    for (let apply = 0; apply < 600; apply++) {
      problems.replace("mesh", badPrefixes(turn++, "b"));
      await clock.advance(100);
    }
    perMinute.push(taken());
  }
  expect(perMinute.map(({ length }) => length)).toEqual([20, 21, 21]);
  expect(perMinute[1]?.[0]).toBe(
    'warn Left out for a minute: 9580 more problems of node "b" began, 9584 ended; all that last are in the status ' +
      '{"begun":9580,"ended":9584,"node":"b"}',
  );
  expect(
    problems
      .current()
      .map(({ message }) => message)
      .toSorted(),
  ).toEqual(
    badPrefixes(turn - 1)
      .map(({ message }) => message)
      .toSorted(),
  );
});

test("ProblemLog tells what it left out at the next look after the minute, also when nothing changes any more", async () => {
  const { problems, taken, clock } = book();
  for (let turn = 0; turn < 2; turn++) problems.replace("mesh", badPrefixes(turn, "b"));
  await clock.advance(59_999);
  problems.replace("host", []);
  expect(taken().length).toBe(20);
  await clock.advance(1);
  problems.replace("host", []);
  expect(taken()).toEqual([
    'warn Left out for a minute: 12 more problems of node "b" began, 16 ended; all that last are in the status ' +
      '{"begun":12,"ended":16,"node":"b"}',
  ]);
});

test.each([
  { name: "another node", flood: "b", other: takenC },
  { name: "the host and the Curator", flood: "b", other: lost },
  { name: "the host and the Curator, when the flood has no usable node ID", flood: undefined, other: lost },
])("ProblemLog keeps a flood from silencing $name", ({ flood, other }) => {
  const { problems, taken } = book();
  for (let turn = 0; turn < 5; turn++) {
    const kind = flood === undefined ? "node-id" : "prefix-malformed";
    problems.replace(
      "mesh",
      badPrefixes(turn, flood).map((each) => ({ ...each, kind })),
    );
  }
  taken();
  problems.replace("other", [other]);
  problems.replace("other", []);
  expect(taken().map((line) => line.split(" {")[0])).toEqual([
    `warn ${other.message}`,
    `info No longer: ${other.message}`,
  ]);
});
