/**
 * Tells when each call of `wg` in a machine of the lab ended.
 *
 * A directory for the front of PATH holds a script that runs the real `wg` and then writes a line into a pipe, which this
 * process reads as it comes: the interface itself cannot be asked, since that takes longer than what is measured.
 * The script costs a shell (about 2 ms), so both sides of a comparison run with it; `costMs` says how much.
 */
import { chmod, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { monotonicMs } from "../../test/lab/monotonic.ts";
import { within } from "../../test/lab/wait.ts";
import { summarize } from "./statistics.ts";

/** A call of `wg` that has ended. */
export interface Stamp {
  /** By `monotonicMs`. */
  readonly atMs: number;
  readonly status: number;
  /** What it was told to do: `show`, `set`, `syncconf` … */
  readonly verb: string;
  /** Number of its arguments. */
  readonly words: number;
}

const changing: ReadonlySet<string> = new Set(["set", "setconf", "addconf", "syncconf"]);

/** Words of `wg set` before the first peer, and of a peer whose prefixes alone change. */
const wordsBefore = 2;
const wordsOfPeer = 4;

export class WgStamps implements AsyncDisposable {
  /** For the front of PATH. */
  readonly path: string;
  readonly #reader: Bun.Subprocess<"ignore", "pipe", "inherit">;
  readonly #stamps: Stamp[] = [];
  readonly #reading: Promise<void>;
  #wake = (): void => {};

  private constructor(path: string, reader: Bun.Subprocess<"ignore", "pipe", "inherit">) {
    this.path = path;
    this.#reader = reader;
    this.#reading = this.#read();
  }

  /** Fills an empty directory. */
  static async create(directory: string): Promise<WgStamps> {
    const real = Bun.which("wg");
    if (real === null) throw new Error('Cannot stamp calls of "wg": it is not installed');
    const pipe = join(directory, "ended");
    await Bun.$`mkfifo ${pipe}`;
    const script = join(directory, "wg");
    await writeFile(
      script,
      `#!/bin/sh\n'${real}' "$@"\nstatus=$?\necho "$status $# $1" >'${pipe}'\nexit $status\n`,
    );
    await chmod(script, 0o755);
    // Open for reading and writing, so that it does not end while no script has it open. Read here, the pipe would keep
    // one of the few threads that all file access of this process shares.
    const reader = ["sh", "-c", 'exec cat <>"$0"', pipe];
    return new WgStamps(directory, Bun.spawn(reader, { stdin: "ignore", stdout: "pipe", stderr: "inherit" }));
  }

  /** Number of calls so far that changed something: what comes after it is counted from here. */
  get changes(): number {
    return this.changesSince(0).length;
  }

  /** The calls that changed something, without the first so many. */
  changesSince(from: number): readonly Stamp[] {
    return this.#stamps.filter(({ verb }) => changing.has(verb)).slice(from);
  }

  /** When the last of the calls after the first `from` ended that set as many peers as wanted. */
  async changed(from: number, peers: number): Promise<number> {
    return await this.#until(() => {
      let rest = peers;
      for (const { words, atMs } of this.changesSince(from)) {
        rest -= Math.floor((words - wordsBefore) / wordsOfPeer);
        if (rest <= 0) return atMs;
      }
      return undefined;
    }, `${peers} peers set`);
  }

  /** When the next call after the first `from` that changed something, whatever it was, ended. */
  async nextChange(from: number): Promise<number> {
    return await this.#until(() => this.changesSince(from)[0]?.atMs, "a change by wg");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#reader.kill("SIGKILL");
    await this.#reading;
  }

  async #until(find: () => number | undefined, what: string): Promise<number> {
    for (;;) {
      const found = find();
      if (found !== undefined) return found;
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#wake = resolve;
      await within(promise, 60_000, what);
    }
  }

  async #read(): Promise<void> {
    const decoder = new TextDecoder();
    for await (const piece of this.#reader.stdout) {
      const atMs = monotonicMs();
      // A line is shorter than a pipe's atomic size, so that none comes in pieces.
      for (const line of decoder.decode(piece).trim().split("\n")) {
        const [status, words, verb = ""] = line.split(" ");
        this.#stamps.push({ atMs, status: Number(status), words: Number(words), verb });
      }
      this.#wake();
    }
  }
}

/** What the script adds to a call of `wg`, in milliseconds: the difference of the medians. */
export function costOfStamps(stamps: WgStamps): number {
  const bare = Bun.which("wg") ?? "wg";
  const pairs = Array.from(
    { length: 21 },
    () => [timeRun([bare, "--version"]), timeRun([join(stamps.path, "wg"), "--version"])] as const,
  );
  return (
    summarize(pairs.map(([, stamped]) => stamped)).median - summarize(pairs.map(([plain]) => plain)).median
  );
}

/** Milliseconds from spawn to end of a program that must end with status 0. */
export function timeRun(argv: readonly string[]): number {
  const begun = performance.now();
  const { exitCode } = Bun.spawnSync([...argv], {
    stdin: "ignore",
    stdout: "ignore",
    stderr: "inherit",
    env: {},
  });
  const ms = performance.now() - begun;
  if (exitCode !== 0) throw new Error(`"${argv.join(" ")}" ended with status ${exitCode}`);
  return ms;
}
