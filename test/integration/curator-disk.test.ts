/**
 * A Curator whose disk gives wrong answers, or whose directory is closed to it: what it says, and that the file with the
 * removed nodes in it stays as it is. System calls are made to fail by strace, which needs no file system of its own.
 */
import { describe, expect, test } from "bun:test";
import {
  chmodSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { NodeId } from "../../src/core/node.ts";
import { openSqliteStore } from "../../src/curator-server/sqlite-store.ts";
import { executable } from "../lab/executable.ts";
import { LabProcess } from "../lab/process.ts";
import { soonMs } from "../lab/stage.ts";

/** Nobody's: root is kept out of no directory. */
const nobody = 65_534;

/** A data directory, and the Curators that are started on it. */
class Disk implements AsyncDisposable {
  /** Others must get through to what is in it. */
  readonly root = mkdtempSync(join(tmpdir(), "clusternet-disk-"));
  readonly directory = join(this.root, "data");
  readonly database = join(this.directory, "curator.db");
  readonly #started: LabProcess[] = [];

  /** With a database of some 20 pages. */
  constructor() {
    chmodSync(this.root, 0o755);
    mkdirSync(this.directory, { mode: 0o700 });
    const store = openSqliteStore(this.database);
    const node = {
      externalAddress: "192.0.2.1",
      reportedAtMs: 1,
      status: new Uint8Array(60),
      publicKey: "k",
    };
    store.commit(
      Array.from({ length: nodes }, (_, number) => ({
        kind: "put" as const,
        node: { ...node, id: `n${number}` as NodeId, prefixes: [] },
      })),
      () => expect.unreachable("the file is in its place"),
    );
    store.close();
  }

  /** Starts a Curator behind this command. */
  start(...wrapper: readonly string[]): LabProcess {
    const flags = ["--insecure", "--listen", "127.0.0.1:0", "--data-dir", this.directory];
    const started = new LabProcess([...wrapper, executable, "curator", ...flags], {
      env: { PATH: process.env["PATH"] ?? "" },
    });
    this.#started.push(started);
    return started;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await Promise.all(this.#started.map((each) => each.stop()));
    rmSync(this.root, { recursive: true, force: true });
  }
}

const nodes = 500;
const isListening = /Curator is listening .*nodes=500/;

describe("a disk on which reading the database", () => {
  test.concurrent.each([
    { name: "fails from the first page on", inject: "error=EIO:when=1+", says: "SQLITE_IOERR" },
    {
      name: "fails in the middle of SQLite's check",
      inject: "error=EIO:when=5+",
      says: "SQLITE_IOERR|disk I/O error",
    },
    { name: "fails once in the middle of that check", inject: "error=EIO:when=5", says: "disk I/O error" },
    { name: "brings less than there is", inject: "retval=0:when=1+", says: "only 0 of its \\d+ bytes" },
    {
      name: "brings less in the middle of that check",
      inject: "retval=0:when=5+",
      says: "only 0 of its \\d+ bytes",
    },
  ])(
    "$name: that is told (78), and not that the file is damaged, which is used afterwards",
    async ({ inject, says }) => {
      await using disk = new Disk();
      const { database } = disk;
      const before = readFileSync(database);
      const faulty = disk.start(
        ..."strace -f -qq -o /dev/null -e trace=pread64 -P".split(" "),
        database,
        "-e",
        `inject=pread64:${inject}`,
      );
      const { code } = await faulty.exited;
      expect([code, faulty.stderr]).toEqual([
        78,
        expect.stringMatching(new RegExp(`^Cannot use database ".*curator\\.db": .*(${says})`, "m")),
      ]);
      expect(faulty.stderr).toMatch(
        /hint: Look in the kernel's log .* start again: the file was left as it is$/m,
      );
      expect(faulty.stderr).not.toMatch(/damaged|move/i);
      expect(readFileSync(database)).toEqual(before);
      await disk.start().waitForLine(isListening, { limitMs: soonMs });
    },
  );
});

test.concurrent("a disk that fails once after the database was made anew and named: that file is known, and used at the next try", async () => {
  await using disk = new Disk();
  const curator = disk.start(
    // Not the tracer but the Curator is what is stopped.
    ..."strace -D -f -qq -o /dev/null -e trace=unlink,unlinkat -P".split(" "),
    `${disk.database}-new`,
    // The first one looks for what an earlier try has left.
    ..."-e inject=unlink,unlinkat:error=EIO:when=2".split(" "),
  );
  await curator.waitForLine(isListening, { limitMs: soonMs });
  unlinkSync(disk.database);
  await curator.waitForLine(/ERROR Cannot write database .*EIO/, { limitMs: soonMs });
  await curator.waitForLine(/The database was gone: everything was written into a new one/, {
    limitMs: soonMs,
  });
  expect(await curator.stop()).toEqual({ code: 0, signal: undefined });
  expect(readdirSync(disk.directory)).not.toContain("curator.db-new");
  await disk.start().waitForLine(isListening, { limitMs: soonMs });
});

describe("a data directory that is taken from a running Curator", () => {
  test.concurrent.each([
    {
      name: "may not be searched any more",
      take: (directory: string) => chmodSync(directory, 0o600),
      give: (directory: string) => chmodSync(directory, 0o700),
      says: /ERROR Cannot write database ".*curator\.db": EACCES: permission denied; hint: Let the user who runs the Curator /,
    },
    {
      name: "has become a file",
      take: (directory: string) => {
        renameSync(directory, `${directory}-away`);
        writeFileSync(directory, "");
      },
      give: (directory: string) => {
        unlinkSync(directory);
        renameSync(`${directory}-away`, directory);
      },
      says: /ERROR Cannot make data directory ".*": something other than a directory is there/,
    },
  ])(
    "$name: it says what to do, is stopped with 0, and is all right when it is back",
    async ({ take, give, says }) => {
      await using disk = new Disk();
      for (const path of [disk.root, disk.directory, disk.database]) chownSync(path, nobody, nobody);
      const own = ["setpriv", `--reuid=${nobody}`, `--regid=${nobody}`, "--clear-groups"];
      const curator = disk.start(...own);
      await curator.waitForLine(isListening, { limitMs: soonMs });
      take(disk.directory);
      await curator.waitForLine(says, { limitMs: soonMs });
      expect(await curator.stop()).toEqual({ code: 0, signal: undefined });
      const errors = curator.lines.map(({ text }) => text).filter((text) => / ERROR /.test(text));
      // None of the system's alone.
      expect(errors).toEqual(errors.filter((text) => / ERROR Cannot /.test(text)));
      give(disk.directory);
      await disk.start(...own).waitForLine(isListening, { limitMs: soonMs });
    },
  );
});
