/**
 * Records every call of `wg`, `ip` and `wireguard-go` that a program under test makes.
 *
 * A directory for the front of PATH holds a small script for each program, which appends its arguments
 * to a log and becomes the real program. "No commands" in a test means that `changes()` is empty.
 */
import { appendFile, chmod, readFile, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";

const programs = ["wg", "ip", "wireguard-go"];

/** ASCII unit and record separators: no argument of these programs holds them. */
const unit = "\u001F";
const record = "\u001E";

/** `ip` objects are changed by these words only; `wg` by its own three. */
const changingWords = new Set([
  "add",
  "change",
  "replace",
  "append",
  "del",
  "delete",
  "flush",
  "set",
  "setconf",
  "syncconf",
  "addconf",
]);

export class Recorder {
  /** The directory: `spawn(argv, { path: recorder.path })`. */
  readonly path: string;
  readonly #log: string;

  private constructor(path: string) {
    this.path = path;
    this.#log = join(path, "calls.log");
  }

  /** Fills an empty directory. */
  static async create(directory: string): Promise<Recorder> {
    const recorder = new Recorder(directory);
    await appendFile(recorder.#log, "");
    for (const name of programs) {
      const real = Bun.which(name);
      if (real === null) continue;
      const script = join(directory, name);
      // One printf is one write to a file opened for appending: calls at the same time do not mix. What a batch is given is
      // its last argument here.
      await writeFile(
        script,
        `#!/bin/sh
log() { printf '%s\\037' ${name} "$@" "${record}" >>'${recorder.#log}'; }
case " $* " in
*' -batch - '*) given=$(cat); log "$@" "$given"; printf '%s\\n' "$given" | '${real}' "$@"; exit ;;
esac
log "$@"
exec '${real}' "$@"
`,
      );
      await chmod(script, 0o755);
    }
    return recorder;
  }

  /** Every call so far: program and arguments. */
  async calls(): Promise<string[][]> {
    const log = await readFile(this.#log, "utf8");
    return log
      .split(record + unit)
      .slice(0, -1)
      .map((call) => call.split(unit).slice(0, -1));
  }

  /** The calls that change something, rather than look. Starting a wireguard-go is a change. */
  async changes(): Promise<string[][]> {
    const calls = await this.calls();
    return calls.filter(
      ([program, ...words]) =>
        program === "wireguard-go" ||
        words.some((word) => word.split(/\s+/).some((each) => changingWords.has(each))),
    );
  }

  /** Forgets the calls so far. */
  async clear(): Promise<void> {
    await truncate(this.#log);
  }
}
