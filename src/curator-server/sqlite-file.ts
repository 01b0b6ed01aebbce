/**
 * One file of the Curator's database as it was opened, whatever becomes of its name.
 *
 * Durable: WAL with synchronous=FULL, so a commit that returned survives a power loss. A file that is damaged,
 * not ours, or of a newer version is never written to, and stays as it is. What the system or SQLite says is thrown as it
 * is: sqlite-error.ts makes of it what a person is told.
 */
import { constants, Database } from "bun:sqlite";
import { closeSync, openSync } from "node:fs";
import { dirname } from "node:path";
import * as v from "valibot";
import { asNodeId, nodeIdProblem, type NodeId } from "../core/node.ts";
import { ClusternetError, isSystemError } from "../errors.ts";
import { lstatIfThere, syncDirectoryNow } from "../host/files.ts";
import { ContentDoubt, ContentFault } from "./sqlite-error.ts";
import type { StoredChange, StoredNode, StoredState } from "./store.ts";

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
/** Missing in files that were made before there was such a table; whoever does not know it may go on without. */
const allowedTable = "CREATE TABLE IF NOT EXISTS allowed_node (id TEXT PRIMARY KEY NOT NULL) STRICT";

const nodeRow = v.object({
  id: v.string(),
  external_address: v.string(),
  reported_at_ms: v.pipe(v.number(), v.integer(), v.minValue(0)),
  status: v.instance(Uint8Array),
  public_key: v.string(),
  prefixes: v.string(),
});
const keyRow = v.object({ public_key: v.string(), node_id: v.string() });
const idRow = v.object({ id: v.string() });
const prefixTexts = v.array(v.string());

/**
 * Opens the file, making it (mode 0600) when absent. Throws ContentFault, ContentDoubt, or what the system or SQLite says; the
 * file is closed then.
 */
export function openFile(path: string): OpenFile {
  let database: Database | undefined;
  try {
    const isNew = ensureFile(path);
    database = new Database(path, { readwrite: true, create: false, strict: true });
    if (isNew || isEmpty(database)) create(database, path);
    else requireOurs(database);
    database.run(allowedTable);
    return new OpenFile(database, path);
  } catch (error) {
    database?.close();
    throw error;
  }
}

/** SQLite makes its files with the umask's mode; made here first, they get 0600 and its other files follow. */
function ensureFile(path: string): boolean {
  try {
    closeSync(openSync(path, "wx", 0o600));
    return true;
  } catch (error) {
    if (isSystemError(error, "EEXIST")) return false;
    throw error;
  }
}

function isEmpty(database: Database): boolean {
  return readNumber(database, "SELECT count(*) FROM sqlite_schema") === 0;
}

function create(database: Database, path: string): void {
  // The name of the file must survive a power loss as well as what is in it. First, since a file that has its tables is
  // not asked for that again at the next start.
  syncDirectoryNow(dirname(path));
  setModes(database);
  database.transaction(() => database.run(schema)).immediate();
}

function requireOurs(database: Database): void {
  const id = readNumber(database, "PRAGMA application_id");
  if (id !== applicationId) {
    throw new ContentFault(
      `made by another program (application ID ${id}, expected ${applicationId})`,
      "Move the file away, or choose another --data-dir",
    );
  }
  const version = readNumber(database, "PRAGMA user_version");
  if (version !== schemaVersion) {
    throw new ContentFault(
      `its version is ${version}, expected ${schemaVersion}`,
      "A newer clusternet wrote it: use that version or a backup",
    );
  }
  const check = Object.values(database.query<object, []>("PRAGMA quick_check(1)").get() ?? {})[0];
  if (check !== "ok") throw new ContentDoubt(String(check).replaceAll("\n", " "));
  setModes(database);
}

function setModes(database: Database): void {
  database.run("PRAGMA journal_mode = WAL");
  // In WAL mode the default (NORMAL) may lose the last commits at a power loss.
  database.run("PRAGMA synchronous = FULL");
  // The write-ahead log is made by the first reading; from here on it is there and can be missed.
  readNumber(database, "SELECT count(*) FROM sqlite_schema");
}

function readNumber(database: Database, sql: string): number {
  return Number(Object.values(database.query<object, []>(sql).get() ?? {})[0]);
}

/** What its tables hold, not looked into yet. */
type StoredRows = Readonly<Record<keyof StoredState, readonly unknown[]>>;

/** An open file. */
export class OpenFile {
  readonly #database: Database;
  readonly #path: string;
  /** As `identityOf` says, when it was opened. */
  readonly identity: string | undefined;
  readonly #walIdentity: string | undefined;
  readonly #commit: (changes: readonly StoredChange[]) => void;
  readonly #replaceAll: (state: StoredState) => void;
  readonly #statements: readonly { finalize(): void }[];
  #closed = false;

  constructor(database: Database, path: string) {
    this.#database = database;
    this.#path = path;
    this.identity = identityOf(path);
    this.#walIdentity = identityOf(`${path}-wal`);
    const put = database.prepare<void, [string, string, number, Uint8Array, string, string]>(
      "INSERT OR REPLACE INTO node (id, external_address, reported_at_ms, status, public_key, prefixes) VALUES (?, ?, ?, ?, ?, ?)",
    );
    const useKey = database.prepare<void, [string, string]>(
      "INSERT OR REPLACE INTO used_key (public_key, node_id) VALUES (?, ?)",
    );
    const forgetKey = database.prepare<void, [string]>("DELETE FROM used_key WHERE public_key = ?");
    const dropNode = database.prepare<void, [string]>("DELETE FROM node WHERE id = ?");
    const addRemoved = database.prepare<void, [string]>(
      "INSERT OR REPLACE INTO removed_node (id) VALUES (?)",
    );
    const dropRemoved = database.prepare<void, [string]>("DELETE FROM removed_node WHERE id = ?");
    const addAllowed = database.prepare<void, [string]>(
      "INSERT OR REPLACE INTO allowed_node (id) VALUES (?)",
    );
    const dropAllowed = database.prepare<void, [string]>("DELETE FROM allowed_node WHERE id = ?");
    const ofStrangers = [addRemoved, dropRemoved, addAllowed, dropAllowed];
    this.#statements = [put, useKey, forgetKey, dropNode, ...ofStrangers];
    const carryOut = (changes: readonly StoredChange[]): void => {
      for (const change of changes) {
        switch (change.kind) {
          case "put": {
            const { id, externalAddress, reportedAtMs, status, publicKey, prefixes } = change.node;
            put.run(id, externalAddress, reportedAtMs, status, publicKey, JSON.stringify(prefixes));
            dropAllowed.run(id);
            break;
          }
          case "use-key":
            // Replacing gives the row a new place, at the end.
            useKey.run(change.publicKey, change.id);
            break;
          case "forget-key":
            forgetKey.run(change.publicKey);
            break;
          case "remove":
            dropNode.run(change.id);
            addRemoved.run(change.id);
            dropAllowed.run(change.id);
            break;
          case "allow":
            dropRemoved.run(change.id);
            addAllowed.run(change.id);
            break;
        }
      }
    };
    this.#commit = database.transaction(carryOut).immediate;
    this.#replaceAll = database.transaction(({ nodes, keys, removed, allowed }: StoredState) => {
      for (const table of ["node", "used_key", "removed_node", "allowed_node"])
        database.run(`DELETE FROM ${table}`);
      carryOut([
        ...[...removed].map((id) => ({ kind: "remove", id }) as const),
        ...[...allowed].map((id) => ({ kind: "allow", id }) as const),
        ...nodes.map((node) => ({ kind: "put", node }) as const),
        ...[...keys].map(([publicKey, id]) => ({ kind: "use-key", publicKey, id }) as const),
      ]);
    }).immediate;
  }

  /** True while what is written here is found again under its name. Throws what the system says when nobody can tell. */
  isInPlace(): boolean {
    return (
      !this.#closed &&
      identityOf(this.#path) === this.identity &&
      identityOf(`${this.#path}-wal`) === this.#walIdentity
    );
  }

  /** Throws ContentDoubt, or what SQLite says. */
  load(): StoredState {
    const rows: StoredRows = {
      nodes: this.#rows("SELECT * FROM node ORDER BY id"),
      keys: this.#rows("SELECT * FROM used_key ORDER BY rowid"),
      removed: this.#rows("SELECT * FROM removed_node"),
      allowed: this.#rows("SELECT * FROM allowed_node"),
    };
    try {
      return {
        nodes: rows.nodes.map(readNode),
        keys: new Map(rows.keys.map(readKey)),
        removed: new Set(rows.removed.map(readId)),
        allowed: new Set(rows.allowed.map(readId)),
      };
    } catch (error) {
      throw new ContentDoubt("a row holds what no Curator writes", { cause: error });
    }
  }

  /** Durable when it returns. */
  commit(changes: readonly StoredChange[]): void {
    this.#commit(changes);
  }

  /** Makes it hold this state and nothing else; durable when it returns. */
  replaceAll(state: StoredState): void {
    this.#replaceAll(state);
  }

  /** Takes everything out of the write-ahead log into the file itself, for as long as nobody opens it again. */
  endLog(): void {
    this.#database.run("PRAGMA journal_mode = DELETE");
  }

  /** May be called twice. Never throws. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (!this.#hasItsName()) this.#database.fileControl(constants.SQLITE_FCNTL_PERSIST_WAL, 1);
    // With a statement left, SQLite would keep the file open, and its write-ahead log beside it.
    for (const statement of this.#statements) statement.finalize();
    this.#database.close();
  }

  /** SQLite removes the write-ahead log by its name, which may be that of another database by now. */
  #hasItsName(): boolean {
    try {
      const found = identityOf(this.#path);
      return found === undefined || found === this.identity;
    } catch {
      // Whatever keeps us from looking: a log that is left is taken in at the next start.
      return false;
    }
  }

  #rows(sql: string): readonly unknown[] {
    return this.#database.query<unknown, []>(sql).all();
  }
}

/** Which file has that name. The number is not used again while the file is open. Throws as `lstatIfThere`. */
export function identityOf(path: string): string | undefined {
  const found = lstatIfThere(path);
  return found === undefined ? undefined : `${found.dev} ${found.ino}`;
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

function readKey(row: unknown): readonly [publicKey: string, owner: NodeId] {
  const { public_key: publicKey, node_id: id } = v.parse(keyRow, row);
  return [publicKey, readNodeId(id)];
}

function readId(row: unknown): NodeId {
  return readNodeId(v.parse(idRow, row).id);
}

function readNodeId(text: string): NodeId {
  const id = asNodeId(text);
  if (id === undefined) throw new ClusternetError(nodeIdProblem(text));
  return id;
}
