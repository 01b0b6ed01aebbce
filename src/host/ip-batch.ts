/**
 * Readings of `ip` that are asked for in the same instant, made by one process instead of one each.
 *
 * A comparison of the host asks `ip` for links, routes and the way to the Curator, in two parts of the program that know
 * nothing of each other, and starting a process costs more than any of the answers. So what looks the same in front
 * (`ipReading`) and comes before this program turns to something else goes to one `ip -batch`, and what is asked twice is
 * answered once. It tells nothing that the single readings would not: when anything about it is odd, each of them is made
 * by itself, and its error is the one that is told. Only a program that hangs is not waited for again.
 */
import type { Family } from "../core/prefix.ts";
import { CommandError } from "../errors.ts";
import type { RunCommand } from "./command.ts";

/** Numbers where names depend on files under /etc/iproute2, JSON, and the kind of a link. */
const front = ["ip", "-N", "-j", "-d"] as const;

/** The command that shows this, of a route that of IPv6 or, as `ip` does when it is told nothing, of IPv4. */
export function ipReading(words: string, family: Family = 4): readonly string[] {
  return [...front, ...(family === 6 ? ["-6"] : []), ...words.split(" ")];
}

/** Readings that one process can make. */
interface Batch {
  /** The words that all have in front. */
  readonly front: readonly string[];
  readonly signal: AbortSignal | undefined;
  /** By what stands behind. */
  readonly readings: Map<string, Reading>;
}

interface Reading extends PromiseWithResolvers<string> {
  readonly argv: readonly string[];
}

/** `run` as before, but for readings by `ipReading` that come together. */
export function batchIp(run: RunCommand): RunCommand {
  let batches: Batch[] = [];
  const makeAll = (): void => {
    const all = batches;
    batches = [];
    for (const batch of all) void make(run, batch);
  };
  return (argv, options = {}) => {
    const { signal, ...others } = options;
    const parts = partsOf(argv);
    if (parts === undefined || Object.keys(others).length > 0) return run(argv, options);
    if (batches.length === 0) setImmediate(makeAll);
    const known = batches.find((each) => each.signal === signal && each.front.length === parts.front.length);
    const batch: Batch = known ?? { front: parts.front, signal, readings: new Map() };
    if (known === undefined) batches.push(batch);
    const reading = batch.readings.get(parts.line) ?? { argv, ...Promise.withResolvers<string>() };
    batch.readings.set(parts.line, reading);
    return reading.promise;
  };
}

/** Undefined for what is no such reading, or has words that a batch would take for something else. */
function partsOf(
  argv: readonly string[],
): { readonly front: readonly string[]; readonly line: string } | undefined {
  if (front.some((word, at) => argv[at] !== word)) return undefined;
  const at = argv[front.length] === "-6" ? front.length + 1 : front.length;
  const words = argv.slice(at);
  const isReading = words[1] === "show" || words[1] === "get";
  if (!isReading || !words.every((word) => /^[\w.:/]+$/.test(word))) return undefined;
  return { front: argv.slice(0, at), line: words.join(" ") };
}

/** Never throws: each reading is told. */
async function make(run: RunCommand, { front: before, signal, readings }: Batch): Promise<void> {
  const limit = signal === undefined ? {} : { signal };
  const all = [...readings.values()];
  if (all.length > 1) {
    try {
      const input = [...readings.keys()].map((line) => `${line}\n`).join("");
      const answers = (await run([...before, "-batch", "-"], { ...limit, input })).split("\n");
      // One line each, and the end of the last one.
      if (answers.pop() === "" && answers.length === all.length) {
        for (const [at, reading] of all.entries()) reading.resolve(answers[at] ?? "");
        return;
      }
    } catch (error) {
      if (!(error instanceof CommandError) || error.exitCode === undefined) {
        for (const reading of all) reading.reject(error);
        return;
      }
    }
  }
  for (const reading of all) reading.resolve(run(reading.argv, limit));
}
