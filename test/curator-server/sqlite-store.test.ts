/**
 * The SQLite file: what comes back after a restart, and files that are not ours or damaged.
 */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { Database } from "bun:sqlite";
import { mkdtempSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { NodeId } from "../../src/core/node.ts";
import { openSqliteStore } from "../../src/curator-server/sqlite-store.ts";
import type { StoredNode } from "../../src/curator-server/store.ts";
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

test("everything committed comes back, in a file that only its owner may read", () => {
  const store = openSqliteStore(path);
  store.commit([
    { kind: "put", node: node("a", ["10.192.0.0/24", "10.192.0.0/24"]) },
    { kind: "use-key", publicKey: "key", id: "a" as NodeId },
    { kind: "put", node: node("b") },
    { kind: "put", node: node("c") },
  ]);
  store.commit([{ kind: "remove", id: "b" as NodeId }]);
  store.commit([
    { kind: "remove", id: "c" as NodeId },
    { kind: "allow", id: "c" as NodeId },
  ]);
  store.close();

  const again = openSqliteStore(path);
  expect(again.load()).toEqual({
    nodes: [node("a", ["10.192.0.0/24", "10.192.0.0/24"])],
    keys: new Map([["key", "a" as NodeId]]),
    removed: new Set(["b" as NodeId]),
  });
  again.close();
  expect(statSync(path).mode & 0o777).toBe(0o600);
});

test("what was committed is there although the process never closed the file", () => {
  const source = `
    import { openSqliteStore } from ${JSON.stringify(join(import.meta.dir, "../../src/curator-server/sqlite-store.ts"))};
    const store = openSqliteStore(${JSON.stringify(path)});
    store.commit([{ kind: "allow", id: "x" }, { kind: "remove", id: "gone" }]);
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
  store.commit([{ kind: "put", node: node("a") }]);
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
    store.commit([
      { kind: "put", node: node("a") },
      { kind: "put", node: bad },
    ]),
  ).toThrow(/Cannot write database/);
  expect(store.load().nodes).toEqual([]);
  store.close();
});

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
        const store = openSqliteStore(path);
        store.commit(
          Array.from({ length: 500 }, (_, index) => ({ kind: "put" as const, node: node(`n${index}`) })),
        );
        store.close();
        const bytes = readFileSync(path);
        writeFileSync(path, bytes.fill(0x5a, 8192));
      },
      message: /damaged or no database/,
    },
    {
      name: "cut in the middle",
      make: () => {
        const store = openSqliteStore(path);
        store.commit(
          Array.from({ length: 500 }, (_, index) => ({ kind: "put" as const, node: node(`n${index}`) })),
        );
        store.close();
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

  test("stored values that no Curator wrote", () => {
    const store = openSqliteStore(path);
    store.commit([{ kind: "put", node: node("a") }]);
    store.close();
    const database = new Database(path);
    database.run("UPDATE node SET prefixes = 'x'");
    database.close();
    const damaged = openSqliteStore(path);
    expect(() => damaged.load()).toThrow(/damaged/);
    damaged.close();
  });
});
