/**
 * The Curator's store in one SQLite file, `curator.db`.
 *
 * Durable: WAL with synchronous=FULL, so a commit that returned survives a power loss. A file that is damaged,
 * not ours, or of a newer version is never written to: SettingsError (exit 78), and it stays as it is.
 */
import { Database } from "bun:sqlite";
import { closeSync, fsyncSync, openSync } from "node:fs";
import { dirname } from "node:path";
import * as v from "valibot";
import { asNodeId, nodeIdProblem, type NodeId } from "../core/node.ts";
import { ClusternetError, isSystemError, messageOf, SettingsError } from "../errors.ts";
import type { NodeStore, StoredChange, StoredNode, StoredState } from "./store.ts";

/** "ClNt" in ASCII: tells our file from another program's. */
const applicationId = 0x436c4e74;
/** Grows when the tables change; an older program refuses the file. */
const schemaVersion = 1;

const schema = `
  CREATE TABLE node (
    id TEXT PRIMARY KEY NOT NULL,
    external_address TEXT NOT NULL,
    reported_at_ms INTEGER NOT NULL,
    status BLOB NOT NULL,
    public_key TEXT NOT NULL,
    prefixes TEXT NOT NULL
  ) STRICT;
  CREATE TABLE used_key (public_key TEXT PRIMARY KEY NOT NULL, node_id TEXT NOT NULL) STRICT;
  CREATE TABLE removed_node (id TEXT PRIMARY KEY NOT NULL) STRICT;
  PRAGMA application_id = ${applicationId};
  PRAGMA user_version = ${schemaVersion};
`;

const nodeRow = v.object({
  id: v.string(),
  external_address: v.string(),
  reported_at_ms: v.pipe(v.number(), v.integer(), v.minValue(0)),
  status: v.instance(Uint8Array),
  public_key: v.string(),
  prefixes: v.string(),
});
const keyRow = v.object({ public_key: v.string(), node_id: v.string() });
const removedRow = v.object({ id: v.string() });
const prefixTexts = v.array(v.string());

/** Opens the file, making it (mode 0600) when absent. Throws SettingsError. */
export function openSqliteStore(path: string): NodeStore {
  let database: Database | undefined;
  try {
    const isNew = ensureFile(path);
    database = new Database(path, { readwrite: true, create: false, strict: true });
    if (isNew || isEmpty(database)) create(database, path);
    else requireOurs(database, path);
    return new SqliteStore(database, path);
  } catch (error) {
    database?.close();
    throw error instanceof ClusternetError ? error : damaged(path, error);
  }
}

/** SQLite makes its files with the umask's mode; made here first, they get 0600 and its other files follow. */
function ensureFile(path: string): boolean {
  try {
    closeSync(openSync(path, "wx", 0o600));
    return true;
  } catch (error) {
    if (isSystemError(error, "EEXIST")) return false;
    throw new SettingsError(`Cannot make database "${path}": ${messageOf(error)}`, { cause: error });
  }
}

function isEmpty(database: Database): boolean {
  return readNumber(database, "SELECT count(*) FROM sqlite_schema") === 0;
}

function create(database: Database, path: string): void {
  setModes(database);
  database.transaction(() => database.run(schema)).immediate();
  // The name of the file must survive a power loss as well as what is in it.
  const directory = openSync(dirname(path), "r");
  try {
    fsyncSync(directory);
  } finally {
    closeSync(directory);
  }
}

function requireOurs(database: Database, path: string): void {
  const id = readNumber(database, "PRAGMA application_id");
  if (id !== applicationId) {
    throw new SettingsError(
      `Cannot use database "${path}": made by another program (application ID ${id}, expected ${applicationId})`,
      { hint: "Move the file away, or choose another --data-dir" },
    );
  }
  const version = readNumber(database, "PRAGMA user_version");
  if (version !== schemaVersion) {
    throw new SettingsError(
      `Cannot use database "${path}": its version is ${version}, expected ${schemaVersion}`,
      { hint: "A newer clusternet wrote it: use that version or a backup" },
    );
  }
  const check = Object.values(database.query<object, []>("PRAGMA quick_check(1)").get() ?? {})[0];
  if (check !== "ok") throw damaged(path, new Error(String(check)));
  setModes(database);
}

function setModes(database: Database): void {
  database.run("PRAGMA journal_mode = WAL");
  // In WAL mode the default (NORMAL) may lose the last commits at a power loss.
  database.run("PRAGMA synchronous = FULL");
}

function readNumber(database: Database, sql: string): number {
  return Number(Object.values(database.query<object, []>(sql).get() ?? {})[0]);
}

function damaged(path: string, cause: unknown): SettingsError {
  return new SettingsError(`Cannot use database "${path}": it is damaged or no database`, {
    cause,
    hint:
      "Restore a backup, or move the file away and start anew: nodes that report their status come back by " +
      "themselves, but which nodes were removed and which keys were used is then forgotten",
  });
}

class SqliteStore implements NodeStore {
  readonly #database: Database;
  readonly #path: string;
  readonly #commit: (changes: readonly StoredChange[]) => void;
  readonly #statements: readonly { finalize(): void }[];

  constructor(database: Database, path: string) {
    this.#database = database;
    this.#path = path;
    const put = database.prepare<void, [string, string, number, Uint8Array, string, string]>(
      "INSERT OR REPLACE INTO node (id, external_address, reported_at_ms, status, public_key, prefixes) VALUES (?, ?, ?, ?, ?, ?)",
    );
    const useKey = database.prepare<void, [string, string]>(
      "INSERT OR REPLACE INTO used_key (public_key, node_id) VALUES (?, ?)",
    );
    const dropNode = database.prepare<void, [string]>("DELETE FROM node WHERE id = ?");
    const addRemoved = database.prepare<void, [string]>(
      "INSERT OR REPLACE INTO removed_node (id) VALUES (?)",
    );
    const dropRemoved = database.prepare<void, [string]>("DELETE FROM removed_node WHERE id = ?");
    this.#statements = [put, useKey, dropNode, addRemoved, dropRemoved];
    this.#commit = database.transaction((changes: readonly StoredChange[]) => {
      for (const change of changes) {
        switch (change.kind) {
          case "put": {
            const { id, externalAddress, reportedAtMs, status, publicKey, prefixes } = change.node;
            put.run(id, externalAddress, reportedAtMs, status, publicKey, JSON.stringify(prefixes));
            break;
          }
          case "use-key":
            useKey.run(change.publicKey, change.id);
            break;
          case "remove":
            dropNode.run(change.id);
            addRemoved.run(change.id);
            break;
          case "allow":
            dropRemoved.run(change.id);
            break;
        }
      }
    }).immediate;
  }

  load(): StoredState {
    try {
      return {
        nodes: this.#rows("SELECT * FROM node ORDER BY id").map(readNode),
        keys: new Map(
          this.#rows("SELECT * FROM used_key").map((row) => {
            const { public_key: publicKey, node_id: id } = v.parse(keyRow, row);
            return [publicKey, readNodeId(id)];
          }),
        ),
        removed: new Set(
          this.#rows("SELECT * FROM removed_node").map((row) => readNodeId(v.parse(removedRow, row).id)),
        ),
      };
    } catch (error) {
      throw damaged(this.#path, error);
    }
  }

  commit(changes: readonly StoredChange[]): void {
    try {
      this.#commit(changes);
    } catch (error) {
      throw new ClusternetError(`Cannot write database "${this.#path}": ${messageOf(error)}`, {
        cause: error,
        hint: "Nodes are told to try again until it can be written: look for a full or read-only disk",
      });
    }
  }

  close(): void {
    // With a statement left, SQLite would keep the file open, and its write-ahead log beside it.
    for (const statement of this.#statements) statement.finalize();
    this.#database.close();
  }

  #rows(sql: string): readonly unknown[] {
    return this.#database.query<unknown, []>(sql).all();
  }
}

function readNode(row: unknown): StoredNode {
  const node = v.parse(nodeRow, row);
  return {
    id: readNodeId(node.id),
    externalAddress: node.external_address,
    reportedAtMs: node.reported_at_ms,
    status: node.status,
    publicKey: node.public_key,
    prefixes: v.parse(prefixTexts, JSON.parse(node.prefixes)),
  };
}

function readNodeId(text: string): NodeId {
  const id = asNodeId(text);
  if (id === undefined) throw new ClusternetError(nodeIdProblem(text));
  return id;
}
