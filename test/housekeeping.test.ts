/** What housekeeping reports of files and directories, on real ones, as long as it lasts; and when it looks again. */
import { expect, test } from "bun:test";
import { chmod, mkdir, readFile, rm, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { AgentMemory, emptyState, StateFile } from "../src/host/state-file.ts";
import { Housekeeping, type HousekeepingParts, type HousekeepingSettings } from "../src/housekeeping.ts";
import { silentLogger } from "../src/log.ts";
import { ProblemLog } from "../src/problem-log.ts";
import { FakeClock } from "./fakes/clock.ts";
import { privateKeyOf } from "./fakes/wanted.ts";
import { withDirectory } from "./host/temporary.ts";
import { waitFor } from "./lab/wait.ts";
import { certificateOf, issued, TestTrust } from "./trust/cluster.ts";

const resyncMs = 30_000;
const neverAsked = (): never => expect.unreachable("nobody asks for the status");

type Given = Pick<HousekeepingSettings, "dataDirectory" | "credentials"> &
  Pick<HousekeepingParts, "memory" | "problems"> &
  Partial<Pick<HousekeepingParts, "log">> & { readonly clock: FakeClock };

function housekeepingOf({ dataDirectory, credentials, ...parts }: Given): Housekeeping {
  return new Housekeeping(
    { dataDirectory, interfaceName: "clusternet", key: privateKeyOf(1), credentials, resyncMs },
    {
      locks: { renew: () => {}, release: () => {} },
      handlers: { status: neverAsked, unhealthy: neverAsked, notReady: neverAsked, remarks: neverAsked },
      log: silentLogger,
      ...parts,
    },
  );
}

test.each<{ name: string; credentials?: boolean; open: string; mode: number; want: readonly string[] }>([
  { name: "nothing of what this user alone may write", open: "data", mode: 0o755, want: [] },
  {
    name: "a data directory that others may write",
    open: "data",
    mode: 0o777,
    want: ["directory-mode data"],
  },
  {
    name: "a directory of credentials that others may write",
    open: "credentials",
    mode: 0o777,
    want: ["directory-mode credentials"],
  },
  {
    name: "nothing of the credentials when there is no TLS",
    credentials: false,
    open: "credentials",
    mode: 0o777,
    want: [],
  },
  {
    name: "a key of the credentials that others may read",
    open: "credentials/key.pem",
    mode: 0o640,
    want: ["key-mode credentials/key.pem"],
  },
])("Housekeeping says $name", async ({ credentials = true, open, mode, want }) => {
  await withDirectory(async (directory) => {
    const inDirectory = (name: string): string => join(directory, name);
    for (const name of ["data", "credentials"]) await mkdir(inDirectory(name), { mode: 0o700 });
    await writeFile(inDirectory("credentials/key.pem"), "", { mode: 0o600 });
    await chmod(inDirectory(open), mode);
    const clock = new FakeClock();
    const problems = new ProblemLog(silentLogger, clock);
    const said = (): readonly string[] =>
      problems.current().map(({ kind, message }) => {
        const [, path = message] = /"([^"]*)"/.exec(message) ?? [];
        return `${kind} ${path.replace(`${directory}/`, "")}`;
      });
    const files = ["ca.pem", "cert.pem", "key.pem"].map((name) => inDirectory(`credentials/${name}`));
    const [ca = "", cert = "", key = ""] = files;
    const housekeeping = housekeepingOf({
      dataDirectory: inDirectory("data"),
      credentials: credentials ? { ca, cert, key } : undefined,
      memory: new AgentMemory(emptyState),
      problems,
      clock,
    });
    const stop = new AbortController();
    const running = housekeeping.run(stop.signal);
    try {
      await clock.untilSleeping();
      expect(said()).toEqual([...want]);
      await chmod(inDirectory(open), 0o700);
      await clock.advance(resyncMs);
      await waitFor(() => said().length === 0, "nothing to be open any more");
    } finally {
      stop.abort();
      await running;
    }
  });
});

test("Housekeeping tells in the log, once, when the certificate has expired", async () => {
  using trust = new TestTrust();
  const own = certificateOf("a", trust.ca, { notAfter: new Date(issued.getTime() - 1_000) });
  await withDirectory(async (dataDirectory) => {
    const clock = new FakeClock(issued);
    const lines: string[] = [];
    const housekeeping = housekeepingOf({
      dataDirectory,
      credentials: trust.files("a", { own }),
      memory: new AgentMemory(emptyState),
      problems: new ProblemLog(silentLogger, clock),
      log: { ...silentLogger, warn: (message: string) => void lines.push(message) },
      clock,
    });
    const stop = new AbortController();
    const running = housekeeping.run(stop.signal);
    const ofCertificate = (): readonly string[] => lines.filter((line) => line.includes("certificate"));
    try {
      for (let turn = 0; turn < 3; turn++) {
        await clock.untilSleeping();
        expect(ofCertificate()).toEqual([
          expect.stringContaining('a-cert.pem" expired on Dec 31 23:59:59 2025 GMT'),
        ]);
        await clock.advance(resyncMs);
      }
    } finally {
      stop.abort();
      await running;
    }
  });
});

const learned = [{ nodeId: "c1", address: "192.0.2.1:7835" }];

test("Housekeeping reports a state file at once that could not be written, and writes it within 15 s after it can be", async () => {
  await withDirectory(async (directory) => {
    const path = join(directory, "clusternet.state");
    const memory = new AgentMemory(emptyState, new StateFile(path, "boot"));
    const clock = new FakeClock();
    // The longest waits.
    clock.nextRandom = 1;
    const problems = new ProblemLog(silentLogger, clock);
    const housekeeping = housekeepingOf({
      dataDirectory: directory,
      credentials: undefined,
      memory,
      problems,
      clock,
    });
    const stop = new AbortController();
    const running = housekeeping.run(stop.signal);
    const waits = (): Promise<unknown> => waitFor(() => clock.sleeping === 1, "a wait");
    try {
      await clock.untilSleeping();
      await rm(path);
      await mkdir(path);
      await memory.learn(learned).catch(() => "refused");
      await waitFor(() => problems.current().length === 1, "the report");
      expect(problems.current()).toMatchObject([
        { kind: "file-unwritable", message: expect.stringContaining("clusternet.state") },
      ]);
      // Until the waits are as long as they become.
      for (const waitMs of [250, 500, 1_000, 2_000, 4_000, 8_000]) {
        await waits();
        await clock.advance(waitMs);
      }
      await waits();
      await rmdir(path);
      expect(memory.isBehind).toBe(true);
      await clock.advance(15_000);
      await waitFor(() => problems.current().length === 0, "the end of the report");
      expect([memory.isBehind, await readFile(path, "utf8")]).toEqual([
        false,
        expect.stringContaining(learned[0]?.address ?? expect.unreachable()),
      ]);
    } finally {
      stop.abort();
      await running;
    }
  });
});
