/**
 * Looks for private keys where they must not be: in texts, in files, in the memory of processes. A key is known by a
 * piece of it, in every form in which a program of the lab has it: base64, hex as WireGuard's socket takes it, bytes.
 */
import { closeSync, lstatSync, openSync, readdirSync, readFileSync, readSync } from "node:fs";
import { join } from "node:path";

/** In PKCS#8 of Ed25519 the key's own bytes come after this many that are the same in all. */
const pkcs8Bytes = 16;

/** A file that was looked into. */
export interface FoundFile {
  readonly path: string;
  /** Permission bits as `ls` would show them, like "600". */
  readonly mode: string;
  /** Names of the secrets in it. */
  readonly secrets: readonly string[];
}

export class SecretGrep {
  readonly #needles = new Map<string, readonly Buffer[]>();

  /** A WireGuard key in base64. */
  addKey(name: string, base64: string): this {
    return this.#add(name, Uint8Array.fromBase64(base64), base64);
  }

  /** An Ed25519 key in a PEM file. */
  addPem(name: string, path: string): this {
    const body = readFileSync(path, "utf8").split("\n").slice(1, -2).join("");
    const bytes = Uint8Array.fromBase64(body).subarray(pkcs8Bytes);
    // Of the text only what differs from key to key; the bytes of a seed alone have another base64.
    return this.#add(name, bytes, bytes.toBase64(), body.slice(Math.ceil((pkcs8Bytes * 4) / 3) + 1));
  }

  /** A text of at least 42 characters, like a token. */
  addText(name: string, text: string): this {
    return this.#add(name, Buffer.from(text), text);
  }

  #add(name: string, bytes: Uint8Array, ...texts: readonly string[]): this {
    const hex = bytes.toHex();
    const pieces = [
      ...texts.flatMap((text) => [text.slice(1, 15), text.slice(15, 29), text.slice(28, 42)]),
      hex.slice(0, 24),
      hex.slice(40),
      hex.slice(0, 24).toUpperCase(),
    ];
    this.#needles.set(name, [
      ...pieces.map((piece) => Buffer.from(piece)),
      Buffer.from(bytes.subarray(0, 16)),
      Buffer.from(bytes.subarray(16)),
    ]);
    return this;
  }

  /** Names of the secrets of which a piece is in it. */
  namesIn(content: string | Uint8Array): readonly string[] {
    const bytes = Buffer.from(content);
    return [...this.#needles].flatMap(([name, needles]) =>
      needles.some((needle) => bytes.includes(needle)) ? [name] : [],
    );
  }

  /** The files below a directory that hold a secret, whoever may read them. */
  filesBelow(directory: string): readonly FoundFile[] {
    return readdirSync(directory, { recursive: true, encoding: "utf8" }).flatMap((name) => {
      const path = join(directory, name);
      const stats = lstatSync(path, { throwIfNoEntry: false });
      if (stats?.isFile() !== true) return [];
      const secrets = this.namesIn(readFileSync(path));
      return secrets.length === 0 ? [] : [{ path, mode: (stats.mode & 0o7777).toString(8), secrets }];
    });
  }

  /** Names of the secrets in what a process has in memory of its own, sorted. Needs root. */
  namesInMemory(pid: number): readonly string[] {
    const found = new Set<string>();
    const [memory, pages] = [openSync(`/proc/${pid}/mem`, "r"), openSync(`/proc/${pid}/pagemap`, "r")];
    try {
      for (const region of writableRegions(pid)) {
        for (const { start, length } of presentParts(pages, region)) {
          for (const name of this.namesIn(readAt(memory, start, length))) found.add(name);
        }
      }
    } finally {
      closeSync(memory);
      closeSync(pages);
    }
    return [...found].toSorted();
  }
}

/** Addresses in the memory of a process. */
interface Part {
  readonly start: number;
  readonly length: number;
}

function writableRegions(pid: number): readonly Part[] {
  return readFileSync(`/proc/${pid}/maps`, "utf8")
    .split("\n")
    .flatMap((line) => {
      const [, from = "", to = ""] = /^([0-9a-f]+)-([0-9a-f]+) rw/.exec(line) ?? [];
      const start = Number.parseInt(from, 16);
      return from === "" ? [] : [{ start, length: Number.parseInt(to, 16) - start }];
    });
}

const pageBytes = 4096;
/** proc_pid_pagemap(5): 64 bits a page, the highest one says that it is there. */
const entryBytes = 8;

/** The runs of pages that are there: of the gigabytes that a JavaScript engine reserves some thousandths. */
function presentParts(pagemap: number, { start, length }: Part): readonly Part[] {
  const entries = readAt(pagemap, (start / pageBytes) * entryBytes, (length / pageBytes) * entryBytes);
  const parts: Part[] = [];
  let from = 0;
  const count = entries.length / entryBytes;
  for (let page = 0; page <= count; page++) {
    if (page < count && ((entries[page * entryBytes + entryBytes - 1] ?? 0) & 0x80) !== 0) continue;
    if (page > from) parts.push({ start: start + from * pageBytes, length: (page - from) * pageBytes });
    from = page + 1;
  }
  return parts;
}

/** As much of it as can be read: pages may be gone by now. */
function readAt(descriptor: number, start: number, length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  let read = 0;
  try {
    while (read < length) {
      const more = readSync(descriptor, bytes, read, length - read, start + read);
      if (more === 0) break;
      read += more;
    }
  } catch {
    // The rest is not there.
  }
  return bytes.subarray(0, read);
}
