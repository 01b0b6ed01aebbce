/**
 * A program started by a test: its output line by line, its end, and waits for both.
 *
 * Output is read to the end of the program, not of the pipe: a daemon that the program leaves behind
 * (wireguard-go) may hold the pipe open for ever.
 */
import { within } from "./wait.ts";

export interface Line {
  readonly stream: "stdout" | "stderr";
  readonly text: string;
  /** performance.now() when it was read. */
  readonly atMs: number;
}

export interface Exit {
  /** Exit status; undefined when a signal ended the program. */
  readonly code: number | undefined;
  readonly signal: string | undefined;
}

export interface LineWait {
  readonly limitMs: number;
  /** Lines before this index (see `mark`) do not count. Default 0: a line that is there already counts. */
  readonly from?: number;
}

export interface ProcessOptions {
  /** The whole environment of the program. */
  readonly env: Readonly<Record<string, string>>;
  /** What it reads on standard input. Default: nothing. */
  readonly stdin?: string;
  /** Standard input stays open for `say`. */
  readonly listens?: true;
  /** Called for every line as it comes. */
  readonly onLine?: (line: Line) => void;
}

/** How long output that is still in the pipe is waited for after the end of a program. */
const drainLimitMs = 200;

/** How long a program may take to end after SIGTERM before `stop` counts it as failed. */
const defaultStopLimitMs = 10_000;

export class LabProcess {
  readonly argv: readonly string[];
  readonly pid: number;
  /** All lines so far, of both streams, as they came. */
  readonly lines: Line[] = [];
  /** Resolves when the program has ended and its output was read; never rejects. */
  readonly exited: Promise<Exit>;
  readonly #child: Bun.Subprocess<Blob | "ignore" | "pipe", "pipe", "pipe">;
  readonly #listeners = new Set<() => void>();
  readonly #onLine: ((line: Line) => void) | undefined;
  #exit: Exit | undefined;

  /** `shown` is the command as messages name it, without the wrapper that takes it into a namespace. */
  constructor(argv: readonly string[], options: ProcessOptions, shown: readonly string[] = argv) {
    this.argv = shown;
    this.#onLine = options.onLine;
    this.#child = Bun.spawn([...argv], {
      env: options.env,
      stdin:
        options.listens === true
          ? "pipe"
          : options.stdin === undefined
            ? "ignore"
            : new Blob([options.stdin]),
      stdout: "pipe",
      stderr: "pipe",
    });
    this.pid = this.#child.pid;
    const read = Promise.all([
      this.#read(this.#child.stdout, "stdout"),
      this.#read(this.#child.stderr, "stderr"),
    ]);
    this.exited = this.#finish(read);
  }

  /** Undefined while the program runs. */
  get exit(): Exit | undefined {
    return this.#exit;
  }

  /** What was written on standard output so far. */
  get stdout(): string {
    return this.#text("stdout");
  }

  /** What was written on standard error so far. */
  get stderr(): string {
    return this.#text("stderr");
  }

  /** Writes a line on the standard input of a program that was started with `listens`. */
  async say(line: string): Promise<void> {
    const { stdin } = this.#child;
    if (typeof stdin !== "object")
      throw new Error(`Cannot say "${line}": the program was started without \`listens\``);
    await stdin.write(`${line}\n`);
    await stdin.flush();
  }

  /** Index of the next line: a later `waitForLine` with `from: mark` sees only what comes from now on. */
  mark(): number {
    return this.lines.length;
  }

  /** The first line of either stream that matches. Fails with the last lines when time runs out or the program ends first. */
  async waitForLine(pattern: RegExp, { limitMs, from = 0 }: LineWait): Promise<Line> {
    let next = from;
    const search = (): Line | undefined => {
      for (; next < this.lines.length; next++) {
        const line = this.lines[next];
        if (line !== undefined && pattern.test(line.text)) return line;
      }
      return undefined;
    };
    const { promise, resolve, reject } = Promise.withResolvers<Line>();
    const look = (): void => {
      const line = search();
      if (line !== undefined) resolve(line);
      else if (this.#exit !== undefined) reject(new Error(`Program ended before a line ${pattern}`));
    };
    this.#listeners.add(look);
    try {
      look();
      return await within(promise, limitMs, `a line ${pattern}`);
    } catch (error) {
      throw new Error(this.describe(), { cause: error });
    } finally {
      this.#listeners.delete(look);
    }
  }

  /** Sends a signal; nothing happens when the program has ended. */
  kill(signal: NodeJS.Signals = "SIGKILL"): void {
    this.#child.kill(signal);
  }

  /** Asks the program to end (SIGTERM) and returns how it did. Fails, after SIGKILL, when it does not within the limit. */
  async stop(limitMs: number = defaultStopLimitMs): Promise<Exit> {
    this.kill("SIGTERM");
    try {
      return await within(this.exited, limitMs, "the end of the program after SIGTERM");
    } catch (error) {
      this.kill("SIGKILL");
      await this.exited;
      throw new Error(this.describe(), { cause: error });
    }
  }

  /** The command, how it ended, and its last lines: for error messages. */
  describe(): string {
    const state =
      this.#exit === undefined
        ? `runs as ${this.pid}`
        : `ended with ${this.#exit.signal ?? `status ${this.#exit.code}`}`;
    const last = this.lines.slice(-30).map(({ stream, text }) => `  ${stream}: ${text}`);
    return [`"${this.argv.join(" ")}" ${state}`, ...last].join("\n");
  }

  #text(stream: Line["stream"]): string {
    return this.lines
      .filter((line) => line.stream === stream)
      .map(({ text }) => `${text}\n`)
      .join("");
  }

  async #read(from: ReadableStream<Uint8Array>, stream: Line["stream"]): Promise<void> {
    const decoder = new TextDecoder();
    let rest = "";
    for await (const chunk of from) {
      const parts = (rest + decoder.decode(chunk, { stream: true })).split("\n");
      rest = parts.pop() ?? "";
      for (const text of parts) this.#add({ stream, text, atMs: performance.now() });
    }
    if (rest !== "") this.#add({ stream, text: rest, atMs: performance.now() });
  }

  #add(line: Line): void {
    this.lines.push(line);
    this.#onLine?.(line);
    for (const listener of this.#listeners) listener();
  }

  async #finish(read: Promise<unknown>): Promise<Exit> {
    const code = await this.#child.exited;
    await Promise.race([read, Bun.sleep(drainLimitMs)]);
    const signal = this.#child.signalCode;
    const exit: Exit =
      signal === null ? { code, signal: undefined } : { code: undefined, signal: String(signal) };
    this.#exit = exit;
    for (const listener of this.#listeners) listener();
    return exit;
  }
}
