/** What housekeeping reports of files and directories that are open to others, on real ones, as long as it lasts. */
import { expect, test } from "bun:test";
import { chmod, mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { AgentMemory, emptyState } from "../src/host/state-file.ts";
import { Housekeeping } from "../src/housekeeping.ts";
import { silentLogger } from "../src/log.ts";
import { ProblemLog } from "../src/problem-log.ts";
import { FakeClock } from "./fakes/clock.ts";
import { privateKeyOf } from "./fakes/wanted.ts";
import { withDirectory } from "./host/temporary.ts";
import { waitFor } from "./lab/wait.ts";

const resyncMs = 30_000;
const neverAsked = (): never => expect.unreachable("nobody asks for the status");

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
    const housekeeping = new Housekeeping(
      {
        dataDirectory: inDirectory("data"),
        interfaceName: "clusternet",
        key: privateKeyOf(1),
        credentials: credentials ? { ca, cert, key } : undefined,
        resyncMs,
      },
      {
        locks: { renew: () => {}, release: () => {} },
        memory: new AgentMemory(emptyState),
        handlers: {
          status: neverAsked,
          unhealthy: neverAsked,
          notReady: neverAsked,
          remarks: neverAsked,
        },
        problems,
        log: silentLogger,
        clock,
      },
    );
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
