/**
 * The SQLite file: what comes back after a restart, and files that are not ours or damaged.
 */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { Database } from "bun:sqlite";
import {
  chmodSync,
  chownSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { NodeId } from "../../src/core/node.ts";
import { openSqliteStore } from "../../src/curator-server/sqlite-store.ts";
import type { StoredChange, StoredNode, StoredState } from "../../src/curator-server/store.ts";
import { SettingsError } from "../../src/errors.ts";

let directory: string;
let path: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "curator-db-"));
  path = join(directory, "curator.db");
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

function node(id: string, prefixes: readonly string[] = []): StoredNode {
  return {
    id: id as NodeId,
    externalAddress: "192.0.2.1",
    reportedAtMs: 1_795_000_000_123,
    status: Uint8Array.of(10, 1, 65, 0xfa, 1, 0),
    publicKey: "key",
    prefixes,
  };
}

function removeAll(): void {
  for (const name of readdirSync(directory)) rmSync(join(directory, name), { recursive: true });
}

/** For stores whose file nobody takes away. */
function unasked(): never {
  throw new Error("the whole state was asked for");
}

function use(publicKey: string): StoredChange {
  return { kind: "use-key", publicKey, id: "a" as NodeId };
}

test("everything committed comes back, in a file that only its owner may read", () => {
  const store = openSqliteStore(path);
  store.commit(
    [
      { kind: "put", node: node("a", ["10.192.0.0/24", "10.192.0.0/24"]) },
      { kind: "use-key", publicKey: "key", id: "a" as NodeId },
      { kind: "put", node: node("b") },
      { kind: "put", node: node("c") },
    ],
    unasked,
  );
  store.commit([{ kind: "remove", id: "b" as NodeId }], unasked);
  store.commit(
    [
      { kind: "remove", id: "c" as NodeId },
      { kind: "allow", id: "c" as NodeId },
    ],
    unasked,
  );
  store.close();

  const again = openSqliteStore(path);
  expect(again.load()).toEqual({
    nodes: [node("a", ["10.192.0.0/24", "10.192.0.0/24"])],
    keys: new Map([["key", "a" as NodeId]]),
    removed: new Set(["b" as NodeId]),
    allowed: new Set(["c" as NodeId]),
  });
  again.close();
  expect(statSync(path).mode & 0o777).toBe(0o600);
});

test("a file of before nodes could be allowed goes on being used", () => {
  openSqliteStore(path).close();
  const database = new Database(path);
  database.run("DROP TABLE allowed_node");
  database.close();
  const store = openSqliteStore(path);
  store.commit([{ kind: "allow", id: "a" as NodeId }], unasked);
  expect(store.load()).toEqual({
    nodes: [],
    keys: new Map(),
    removed: new Set(),
    allowed: new Set(["a" as NodeId]),
  });
  store.close();
});

test("keys come back in the order in which they were used last, without those that were forgotten", () => {
  const store = openSqliteStore(path);
  store.commit([use("3"), use("1"), use("2"), use("4")], unasked);
  store.commit([use("3"), { kind: "forget-key", publicKey: "1" }, use("5")], unasked);
  expect([...store.load().keys.keys()]).toEqual(["2", "4", "3", "5"]);
  store.close();
});

test("what was committed is there although the process never closed the file", () => {
  const source = `
    import { openSqliteStore } from ${JSON.stringify(join(import.meta.dir, "../../src/curator-server/sqlite-store.ts"))};
    const store = openSqliteStore(${JSON.stringify(path)});
    store.commit([{ kind: "allow", id: "x" }, { kind: "remove", id: "gone" }], () => {
      throw new Error("the whole state was asked for");
    });
    process.kill(process.pid, "SIGKILL");
  `;
  const script = join(directory, "writer.ts");
  writeFileSync(script, source);
  const ended = Bun.spawnSync([process.execPath, script]);
  expect(ended.signalCode).toBe("SIGKILL");
  const store = openSqliteStore(path);
  expect([...store.load().removed]).toEqual(["gone" as NodeId]);
  store.close();
});

test("the file is written ahead and synced at every commit", () => {
  const store = openSqliteStore(path);
  store.commit([{ kind: "put", node: node("a") }], unasked);
  expect(statSync(`${path}-wal`).mode & 0o777).toBe(0o600);
  store.close();
  const database = new Database(path, { readonly: true });
  expect(database.query("PRAGMA journal_mode").get()).toEqual({ journal_mode: "wal" });
  database.close();
});

test("a commit that fails half way changes nothing", () => {
  const store = openSqliteStore(path);
  const bad = { ...node("b"), status: "text" as unknown as Uint8Array };
  expect(() =>
    store.commit(
      [
        { kind: "put", node: node("a") },
        { kind: "put", node: bad },
      ],
      unasked,
    ),
  ).toThrow(/Cannot write database/);
  expect(store.load().nodes).toEqual([]);
  store.close();
});

describe("a database that is taken away while it is in use", () => {
  const whole: StoredState = {
    nodes: [node("a"), node("b", ["10.192.1.0/24"])],
    keys: new Map([
      ["key", "a" as NodeId],
      ["old", "c" as NodeId],
    ]),
    removed: new Set(["c" as NodeId]),
    allowed: new Set(["d" as NodeId]),
  };
  const change = [{ kind: "put", node: node("b", ["10.192.1.0/24"]) }] as const;

  test.each([
    { name: "nothing", take: () => {}, kept: "in-place" },
    { name: "the file", take: () => rmSync(path), kept: "anew" },
    { name: "the file and its log", take: removeAll, kept: "anew" },
    { name: "only the log", take: () => rmSync(`${path}-wal`), kept: "anew" },
    { name: "the file, renamed", take: () => renameSync(path, `${path}.old`), kept: "anew" },
    {
      name: "the log, with another one in its place",
      take: () => {
        rmSync(`${path}-wal`);
        writeFileSync(`${path}-wal`, "no log");
      },
      kept: "anew",
    },
    {
      name: "the file, what a crash left of an earlier try beside it",
      take: () => {
        renameSync(path, `${path}-new`);
        rmSync(`${path}-wal`);
      },
      kept: "anew",
    },
  ])("$name: a commit that returned is there after a restart, and all before it", ({ take, kept }) => {
    for (const keep of ["commit", "ensure"] as const) {
      const store = openSqliteStore(path);
      const { nodes, keys, removed, allowed } = whole;
      store.commit(
        [
          ...[...removed, ...allowed].map((id) => ({ kind: "remove", id }) as const),
          ...[...allowed].map((id) => ({ kind: "allow", id }) as const),
          ...nodes.map((node) => ({ kind: "put", node }) as const),
          ...[...keys].map(([publicKey, id]) => ({ kind: "use-key", publicKey, id }) as const),
        ],
        unasked,
      );
      take();
      const give = kept === "anew" ? () => whole : unasked;
      expect(keep === "commit" ? store.commit(change, give) : store.ensure(give)).toBe(kept as "anew");
      expect(store.commit([{ kind: "forget-key", publicKey: "none" }], unasked)).toBe("in-place");
      // As a power loss would find it: the log has not been taken into the file by closing it.
      const copy = join(directory, "copy");
      mkdirSync(copy);
      for (const name of ["curator.db", "curator.db-wal"]) {
        copyFileSync(join(directory, name), join(copy, name));
      }
      const again = openSqliteStore(join(copy, "curator.db"));
      expect(again.load()).toEqual(whole);
      again.close();
      expect(statSync(path).mode & 0o777).toBe(0o600);
      expect(readdirSync(directory)).not.toContain("curator.db-new");
      store.close();
      expect(readdirSync(directory)).not.toContain("curator.db-wal");
      removeAll();
    }
  });

  test("a file that somebody put there is left alone and nothing is kept, until it is gone", () => {
    const store = openSqliteStore(path);
    rmSync(path);
    rmSync(`${path}-wal`);
    writeFileSync(path, "a backup");
    writeFileSync(`${path}-wal`, "its log");
    const keep = (): unknown => store.commit(change, () => whole);
    expect(keep).toThrow(/another file was put in place of the one in use$/);
    expect(() => store.ensure(() => whole)).toThrow(/another file was put in place/);
    expect([readFileSync(path, "utf8"), readFileSync(`${path}-wal`, "utf8")]).toEqual([
      "a backup",
      "its log",
    ]);
    rmSync(path);
    expect(keep()).toBe("anew");
    expect(store.load()).toEqual(whole);
    store.close();
  });

  test("so is one that was put there after no new one could be made", () => {
    const store = openSqliteStore(path);
    rmSync(path);
    // Which cannot be taken out of the way.
    mkdirSync(`${path}-new`);
    const keep = (): unknown => store.commit(change, () => whole);
    expect(keep).toThrow(/^Cannot write database .*curator\.db-new": E/);
    // The first number that is free: it was the first file's.
    writeFileSync(path, "a backup");
    expect(keep).toThrow(/another file was put in place of the one in use$/);
    expect(readFileSync(path, "utf8")).toBe("a backup");
    rmSync(path);
    rmSync(`${path}-new`, { recursive: true });
    expect(keep()).toBe("anew");
    expect(store.load()).toEqual(whole);
    store.close();
    expect(readdirSync(directory)).toEqual(["curator.db"]);
  });

  test("closing leaves the log of a file that somebody put there alone", () => {
    const store = openSqliteStore(path);
    rmSync(path);
    rmSync(`${path}-wal`);
    writeFileSync(path, "a backup");
    writeFileSync(`${path}-wal`, "its log");
    store.close();
    expect(readFileSync(`${path}-wal`, "utf8")).toBe("its log");
  });

  test("a store that was closed writes nothing over what another one has kept since", () => {
    const store = openSqliteStore(path);
    store.close();
    const next = openSqliteStore(path);
    next.commit([{ kind: "remove", id: "a" as NodeId }], unasked);
    const nothing = { nodes: [], keys: new Map(), removed: new Set<NodeId>(), allowed: new Set<NodeId>() };
    expect(() => store.commit([{ kind: "remove", id: "b" as NodeId }], () => nothing)).toThrow(
      /it is closed$/,
    );
    expect(() => store.ensure(() => nothing)).toThrow(/it is closed$/);
    expect(next.load().removed).toEqual(new Set(["a" as NodeId]));
    next.close();
  });

  test("where no new one can be made it says so, and makes it once it can", () => {
    const store = openSqliteStore(path);
    rmSync(directory, { recursive: true });
    const keep = (): unknown => store.commit(change, () => whole);
    const missing =
      /^Cannot write database .*curator\.db": ".*curator\.db-new": ENOENT: no such file or directory$/;
    expect(keep).toThrow(missing);
    expect(keep).toThrow(missing);
    mkdirSync(directory);
    expect(keep()).toBe("anew");
    expect(store.load()).toEqual(whole);
    store.close();
  });
});

const toLetIn =
  "Let the user who runs the Curator read, write and search the data directory, and read and write the files in it";

/** What code says that is run by a user who may not do everything; of an error what a person is told. */
function asNobody(code: string): unknown {
  const source = `
    import { chmodSync, renameSync, rmSync, writeFileSync } from "node:fs";
    import { openSqliteStore } from ${JSON.stringify(join(import.meta.dir, "../../src/curator-server/sqlite-store.ts"))};
    const path = ${JSON.stringify(path)};
    const directory = ${JSON.stringify(directory)};
    const said = [];
    const tell = (what) =>
      said.push(what instanceof Error ? { name: what.name, message: what.message, hint: what.hint } : what);
    process.setuid(65534);
    ${code}
    console.log(JSON.stringify(said));
  `;
  const ended = Bun.spawnSync([process.execPath, "-e", source], { cwd: import.meta.dir });
  return JSON.parse(ended.stdout.toString() || JSON.stringify(ended.stderr.toString()));
}

test.each([
  {
    name: "its directory may not be searched",
    take: "chmodSync(directory, 0o600);",
    give: "chmodSync(directory, 0o700);",
    reason: "EACCES: permission denied",
    remedy: toLetIn,
  },
  {
    name: "its directory has become a file",
    take: "renameSync(directory, directory + '-away'); writeFileSync(directory, '');",
    give: "rmSync(directory); renameSync(directory + '-away', directory);",
    reason: '"%-new": ENOTDIR: not a directory',
    remedy: "Put the data directory back: it is gone, or something else has its name",
  },
  {
    name: "the file is gone, and its directory may not be written",
    take: "renameSync(path, path + '-away'); chmodSync(directory, 0o500);",
    give: "chmodSync(directory, 0o700);",
    reason: '"%-wal": EACCES: permission denied',
    remedy: toLetIn,
  },
])(
  "a store that cannot keep anything says what was found and what to do: $name",
  ({ take, give, reason, remedy }) => {
    // Its parent too: it is renamed.
    const parent = directory;
    directory = join(parent, "data");
    path = join(directory, "curator.db");
    mkdirSync(directory);
    for (const each of [parent, directory]) chownSync(each, 65534, 65534);
    const said = asNobody(`
    const state = { nodes: [], keys: new Map(), removed: new Set(["gone"]), allowed: new Set() };
    const store = openSqliteStore(path);
    const keep = () => store.commit([{ kind: "remove", id: "gone" }], () => state);
    tell(keep());
    ${take}
    for (const each of [keep, () => store.ensure(() => state)]) {
      try { tell(each()); } catch (error) { tell(error); }
    }
    ${give}
    tell(keep());
    tell([...store.load().removed]);
    ${take.replace("'-away'", "'-away-again'")}
    store.close();
    tell("closed");
  `);
    const told = {
      name: "ClusternetError",
      message: `Cannot write database "${path}": ${reason.replace("%", path)}`,
      hint: `${remedy}. Nodes are told to try again until then`,
    };
    directory = parent;
    expect(said).toEqual([
      "in-place",
      told,
      told,
      expect.stringMatching(/^(in-place|anew)$/),
      ["gone"],
      "closed",
    ]);
  },
);

test("a change that went in and was refused, since nobody could look afterwards, is taken out again", () => {
  chownSync(directory, 65534, 65534);
  const said = asNobody(`
    const state = { nodes: [], keys: new Map(), removed: new Set(["other"]), allowed: new Set() };
    const store = openSqliteStore(path);
    // The directory is closed when the change has been carried out, and before it is looked whether it is kept.
    const changes = Object.assign([], {
      *[Symbol.iterator]() {
        yield { kind: "remove", id: "refused" };
        chmodSync(directory, 0);
      },
    });
    try { tell(store.commit(changes, () => state)); } catch (error) { tell(error.message); }
    chmodSync(directory, 0o700);
    tell(store.ensure(() => state));
    tell(store.commit([{ kind: "remove", id: "next" }], () => { throw new Error("it is known to be as it should"); }));
    store.close();
    const again = openSqliteStore(path);
    tell([...again.load().removed].sort());
    again.close();
  `);
  expect(said).toEqual([
    `Cannot write database "${path}": EACCES: permission denied`,
    "in-place",
    "in-place",
    ["next", "other"],
  ]);
});

test("a running store that finds a database of a newer version says to move it away, not to look at the disk", () => {
  const store = openSqliteStore(path);
  const version = `
    const { Database } = require("bun:sqlite");
    const database = new Database(${JSON.stringify(path)});
    for (const sql of ["user_version = 9", "wal_checkpoint(TRUNCATE)"]) database.run("PRAGMA " + sql);
    database.close();`;
  expect(Bun.spawnSync([process.execPath, "-e", version]).exitCode).toBe(0);
  rmSync(`${path}-wal`);
  let thrown: unknown;
  try {
    store.ensure(() => ({ nodes: [], keys: new Map(), removed: new Set(), allowed: new Set() }));
  } catch (error) {
    thrown = error;
  }
  expect(thrown).toMatchObject({
    message: `Cannot write database "${path}": its version is 9, expected 1`,
    hint: "Move the file away, and everything is written into a new one. Nodes are told to try again until then",
  });
  store.close();
});

test("a running store that is told of wrong content keeps its locks on the file: SQLite loses them when this process closes another descriptor", () => {
  const count = 500;
  makeLarge(count, 10_000);
  const store = openSqliteStore(path);
  const locks = (): readonly string[] => {
    const file = `:${statSync(path).ino} `;
    return readFileSync("/proc/locks", "utf8")
      .split("\n")
      .filter((line) => line.includes(file) && line.includes(` ${process.pid} `))
      .map((line) => line.replace(/^\d+: /, ""));
  };
  const before = locks();
  expect(before).not.toEqual([]);
  // By another process, for the same reason; more than SQLite keeps in memory.
  const pages = Math.floor(statSync(path).size / 4096);
  const overwrite = `dd if=/dev/zero of=${path} bs=4096 seek=2 count=${pages - 2} conv=notrunc status=none`;
  expect(Bun.spawnSync(overwrite.split(" ")).exitCode).toBe(0);
  let thrown: unknown;
  try {
    store.commit(
      Array.from({ length: count }, (_, index) => ({ kind: "remove" as const, id: `n${index}` as NodeId })),
      unasked,
    );
  } catch (error) {
    thrown = error;
  }
  expect(thrown).toMatchObject({
    message: `Cannot write database "${path}": SQLITE_CORRUPT: database disk image is malformed`,
    hint: expect.stringMatching(
      /^Look in the kernel's log \(dmesg\) .* move it away, and everything is written/,
    ),
  });
  expect(locks()).toEqual(before);
  store.close();
});

/** A database of more than a few pages: so many nodes, with a status of so many bytes each. */
function makeLarge(count = 500, statusBytes = 6): void {
  const store = openSqliteStore(path);
  store.commit(
    Array.from({ length: count }, (_, index) => ({
      kind: "put" as const,
      node: { ...node(`n${index}`), status: new Uint8Array(statusBytes) },
    })),
    unasked,
  );
  store.close();
}

describe("a file that cannot be used is refused (exit 78) and stays as it is", () => {
  test.each([
    {
      name: "text",
      make: () => writeFileSync(path, "this is no database\n".repeat(100)),
      message: /damaged or no database/,
    },
    {
      name: "a database of another program",
      make: () => {
        const database = new Database(path);
        database.run("CREATE TABLE t (x)");
        database.close();
      },
      message: /made by another program/,
    },
    {
      name: "of a newer version",
      make: () => {
        openSqliteStore(path).close();
        const database = new Database(path);
        database.run("PRAGMA user_version = 2");
        database.close();
      },
      message: /its version is 2, expected 1/,
    },
    {
      name: "with pages overwritten",
      make: () => {
        makeLarge();
        const bytes = readFileSync(path);
        writeFileSync(path, bytes.fill(0x5a, 8192));
      },
      message: /damaged or no database/,
    },
    {
      name: "cut in the middle",
      make: () => {
        makeLarge();
        truncateSync(path, 12_288);
      },
      message: /damaged or no database/,
    },
  ])("$name", ({ make, message }) => {
    make();
    const before = readFileSync(path);
    let thrown: unknown;
    try {
      openSqliteStore(path).load();
    } catch (error) {
      thrown = error;
    }
    expect(thrown).toBeInstanceOf(SettingsError);
    expect(String(thrown)).toMatch(message);
    expect(readFileSync(path)).toEqual(before);
  });

  test.each([
    {
      name: "that another program holds",
      block: () => {
        const other = new Database(path);
        other.run("PRAGMA locking_mode = EXCLUSIVE");
        other.run("CREATE TABLE other (x)");
        return () => {
          other.run("DROP TABLE other");
          other.close();
        };
      },
      found: "SQLITE_BUSY: database is locked",
      remedy: "Stop the other program that holds the file",
    },
    {
      name: "whose log cannot be made",
      block: () => {
        mkdirSync(`${path}-wal`);
        return () => rmSync(`${path}-wal`, { recursive: true });
      },
      found: "SQLITE_CANTOPEN: unable to open database file",
      remedy:
        "Look for a full, failing or read-only disk, a missing permission, or another program that holds the file",
    },
  ])("a good file $name is not called damaged, and used afterwards", ({ block, found, remedy }) => {
    const first = openSqliteStore(path);
    first.commit([{ kind: "remove", id: "a" as NodeId }], unasked);
    first.close();
    const unblock = block();
    let thrown: unknown;
    try {
      openSqliteStore(path);
    } catch (error) {
      thrown = error;
    } finally {
      unblock();
    }
    expect(thrown).toBeInstanceOf(SettingsError);
    expect(thrown).toMatchObject({
      message: `Cannot use database "${path}": ${found}`,
      hint: `${remedy}, and start again: the file was left as it is`,
    });
    const again = openSqliteStore(path);
    expect(again.load().removed).toEqual(new Set(["a" as NodeId]));
    again.close();
  });

  test("a directory that cannot be flushed is named as the reason, until it can", () => {
    const open = "try { openSqliteStore(path).close(); tell('opened'); } catch (error) { tell(error); }";
    const refused = {
      name: "SettingsError",
      message: `Cannot use database "${path}": "${directory}": EACCES: permission denied`,
      hint: `${toLetIn}, and start again: the file was left as it is`,
    };
    chownSync(directory, 65534, 65534);
    chmodSync(directory, 0o300);
    expect([asNobody(open), asNobody(open)]).toEqual([[refused], [refused]]);
    chmodSync(directory, 0o700);
    expect(asNobody(open)).toEqual(["opened"]);
  });

  test.each([
    { name: "no JSON", sql: "UPDATE node SET prefixes = 'x'" },
    { name: "another type", sql: "UPDATE node SET prefixes = '{}'" },
    { name: "a time before all times", sql: "UPDATE node SET reported_at_ms = -1" },
    { name: "no node ID", sql: "UPDATE node SET id = ''" },
    { name: "no node ID for a key", sql: "INSERT INTO used_key VALUES ('k', 'a b')" },
    { name: "no node ID to remove", sql: "INSERT INTO removed_node VALUES ('a b')" },
  ])("stored values that no Curator wrote: $name", ({ sql }) => {
    const store = openSqliteStore(path);
    store.commit([{ kind: "put", node: node("a") }], unasked);
    store.close();
    const database = new Database(path);
    database.run(sql);
    database.close();
    const damaged = openSqliteStore(path);
    expect(() => damaged.load()).toThrow(/it is damaged or no database$/);
    damaged.close();
  });

  test("a file that can no longer be read is not called damaged", () => {
    const store = openSqliteStore(path);
    store.close();
    expect(() => store.load()).toThrow(/^Cannot use database .*: Cannot use a closed database$/);
  });
});
