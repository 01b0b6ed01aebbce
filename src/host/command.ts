/**
 * Runs the programs `wg`, `ip` and `wireguard-go`: the only place that starts a process, but for the exec plugins of a
 * kubeconfig (src/kubernetes/exec-plugin.ts), which need this program's environment.
 *
 * Arguments reach the program as they are: Bun's `$` quotes what is interpolated, and there is no other text in the
 * command. A child gets PATH and LC_ALL=C and nothing else of this program's environment; no secret is ever an
 * argument. Whatever a program says on stderr is redacted before anybody sees it, because wg(8) prints the line of a
 * configuration that it does not understand, private key included.
 *
 * `$` has no time limit and tells no process ID, and any of these programs can hang: `wg` on the socket of a stopped
 * wireguard-go, `ip` on a lock of the kernel. So every call carries a number in its environment by which a child that
 * is late is found among our own and ended. What must outlive this program, or be read while it runs, is started with
 * Bun.spawn, which knows the process and can give it a session of its own.
 */
import { $ } from "bun";
import { readdir, readFile } from "node:fs/promises";
import { CommandError, exitStatus, messageOf, openFilesHint, type ErrorOptions } from "../errors.ts";
import { describeSilence, findServerOf } from "./holder.ts";
import { openLibc, type Libc } from "./libc.ts";
import { PacedPipe } from "./paced-pipe.ts";

export interface CommandOptions {
  /** The program is ended after this time. Default 10 s. */
  readonly timeoutMs?: number;
  /** Exit codes that are no error. Default [0]. */
  readonly okCodes?: readonly number[];
  /**
   * In a session of its own, so that what the program leaves running is not ended with this program's process group.
   * Its standard output is not kept.
   */
  readonly detached?: boolean;
  /**
   * Given what the program writes on standard output piece by piece as it comes, each until the call ends; the result is
   * empty then. What it throws ends the program and is what the call throws.
   */
  readonly onOutput?: ((piece: Uint8Array) => void) | undefined;
  /** What it reads on standard input, which is empty otherwise. Not with `detached` or `onOutput`. */
  readonly input?: string;
  /**
   * When it aborts, the program has 0.7 s left: enough for one that works, which is then not cut off in the middle of
   * a change, and not too long for one that hangs.
   */
  readonly signal?: AbortSignal;
}

/**
 * Runs a program with these arguments (never a shell) and returns what it wrote on standard output.
 * Throws CommandError: program not found in PATH, exit code, time limit, ended because of `signal`; its stderr redacted.
 */
export type RunCommand = (argv: readonly string[], options?: CommandOptions) => Promise<string>;

/** `run` with this signal for every program. */
export function runUntil(run: RunCommand, signal: AbortSignal | undefined): RunCommand {
  return signal === undefined ? run : (argv, options) => run(argv, { ...options, signal });
}

/** Runs a program until it ends or `signal` aborts, and yields its standard output line by line. Throws CommandError when it cannot be started. */
export type FollowCommand = (argv: readonly string[], signal: AbortSignal) => AsyncIterable<string>;

const defaultTimeoutMs = 10_000;
/** How long a program may still run when this one is to stop. */
const stopTimeoutMs = 700;
/** How long a program that was ended may take to be gone. One that hangs in the kernel is left behind. */
const endTimeoutMs = 1_000;
/** A dump of 10,000 peers with 64 prefixes each is about 15 MB. */
const maxOutputBytes = 128 * 1024 * 1024;
const shownArgvCharacters = 200;
const shownStderrCharacters = 2_000;
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/** Debian package of each program, for the remedy. */
const packageOf: Readonly<Record<string, string>> = {
  wg: "wireguard-tools",
  ip: "iproute2",
  "wireguard-go": "wireguard-go",
};

/** Where a program is found in PATH, or undefined. */
export function findProgram(name: string, path = Bun.env["PATH"] ?? defaultPath): string | undefined {
  return Bun.which(name, { PATH: path }) ?? undefined;
}

/**
 * Text with everything that could be a key replaced, except the keys in `known`.
 *
 * What wg(8) quotes of a configuration is replaced whole: a private key with a character too few or too many does not
 * look like a key any more.
 */
export function redactKeys(text: string, known: ReadonlySet<string> = new Set()): string {
  return text
    .replace(/((?:Line unrecognized|Key is not the correct length or format)[^:\n]*:).*/g, "$1 [redacted]")
    .replace(/[A-Za-z0-9+/]{43,}=*/g, (found) => (known.has(found) ? found : "[redacted]"));
}

/** The command as a person would type it, cut to one line's length. `input`: lines for its standard input. */
export function renderArgv(argv: readonly string[], input?: string): string {
  const words = argv.map((word) => (/^[\w@%+=:,./[\]-]+$/.test(word) ? word : JSON.stringify(word)));
  const given = input === undefined ? [] : ["<<<", input.trimEnd().replaceAll("\n", "; ")];
  const line = [...words, ...given].join(" ");
  return line.length > shownArgvCharacters ? `${line.slice(0, shownArgvCharacters)}…` : line;
}

/** A RunCommand that looks programs up in `path` (default: PATH of this program, read at each call). */
export function createRunCommand(options: { readonly path?: string } = {}): RunCommand {
  const call = counter();
  let opened: Libc | undefined;
  const libc = (): Libc => (opened ??= openLibc());
  return async (argv, runOptions = {}) => {
    const {
      timeoutMs = defaultTimeoutMs,
      okCodes = [0],
      detached = false,
      onOutput,
      input,
      signal,
    } = runOptions;
    const path = options.path ?? Bun.env["PATH"] ?? defaultPath;
    const started = locate(argv, path);
    const mark = `${process.pid}.${call()}`;
    const env = { PATH: path, LC_ALL: "C", CLUSTERNET_CALL: mark };
    const limit = { timeoutMs, signal };
    const shown = renderArgv(argv, input);
    const result =
      detached || onOutput !== undefined
        ? await runSpawned(started, env, limit, { detached, onOutput, libc })
        : await runInShell(started, { env, mark, input }, limit);
    if (typeof result === "string") {
      const time =
        result === "late" ? `after ${timeoutMs / 1000} s` : `${stopTimeoutMs / 1000} s after it was to stop`;
      throw new CommandError(`Cannot run "${shown}": still running ${time}, so it was ended`, {
        argv,
        ...silenceHint(argv),
      });
    }
    if (result.written > maxOutputBytes) {
      throw new CommandError(
        `Cannot read the output of "${shown}": ${result.written} bytes, expected at most ${maxOutputBytes}`,
        { argv, exitCode: result.exitCode },
      );
    }
    // Said by Bun, whose shell then ends with 1 as a program may that is content.
    if (
      result.exitCode !== 0 &&
      /^(?:bun: |EMFILE: )?too many open files(?! in system)/i.test(result.stderr)
    ) {
      throw new CommandError(`Cannot run "${shown}": this process has too many open files`, {
        argv,
        hint: openFilesHint,
      });
    }
    if (!okCodes.includes(result.exitCode)) {
      // What is among the arguments is no secret: `wg` may name the public key that it was given.
      const stderr = redactKeys(lastWords(result.stderr), new Set(argv)).trim();
      throw new CommandError(
        `Cannot run "${shown}": exit code ${result.exitCode}${stderr === "" ? "" : `: ${stderr.replaceAll("\n", "; ")}`}`,
        { argv, exitCode: result.exitCode, stderr },
      );
    }
    return result.stdout;
  };
}

/** Whom `wg` has asked in vain: wireguard-go, where that serves the interface. */
function silenceHint([program, , interfaceName]: readonly string[]): Pick<ErrorOptions, "hint"> {
  const server = program === "wg" && interfaceName !== undefined ? findServerOf(interfaceName) : undefined;
  return server === undefined ? {} : { hint: describeSilence(server) };
}

/** The end of what a program said, where the reason stands: without the boxes that wireguard-go draws around advice. */
function lastWords(stderr: string): string {
  return stderr
    .split("\n")
    .filter((line) => !/^[\u2500-\u257f]/.test(line.trim()))
    .join("\n")
    .trim()
    .slice(-shownStderrCharacters);
}

/** How long a program may run. */
interface Limit {
  readonly timeoutMs: number;
  readonly signal: AbortSignal | undefined;
}

interface Outcome {
  readonly exitCode: number;
  readonly stdout: string;
  /** Bytes that came on standard output. */
  readonly written: number;
  readonly stderr: string;
}

type Environment = Record<string, string>;

function counter(): () => number {
  let count = 0;
  return () => ++count;
}

/** The arguments with the program's path in place of its name: `$` would take some names for commands of its own. */
function locate(argv: readonly string[], path: string): readonly string[] {
  const [program = "", ...rest] = argv;
  const found = program.startsWith("/") ? program : findProgram(program, path);
  if (found === undefined) {
    const debian = packageOf[program];
    throw new CommandError(`Cannot run "${program}": no such program in PATH`, {
      argv,
      exit: exitStatus.unavailable,
      hint:
        debian === undefined ? `Install ${program}` : `Install it, on Debian with: apt-get install ${debian}`,
    });
  }
  return [found, ...rest];
}

async function runInShell(
  argv: readonly string[],
  {
    env,
    mark,
    input,
  }: { readonly env: Environment; readonly mark: string; readonly input: string | undefined },
  limit: Limit,
): Promise<Outcome | Cut> {
  const ended = (input === undefined ? $`${argv} < /dev/null` : $`${argv} < ${Buffer.from(input)}`)
    .quiet()
    .nothrow()
    .cwd("/")
    .env(env)
    .then(
      (done): Outcome => ({
        exitCode: done.exitCode,
        stdout: done.stdout.toString(),
        written: done.stdout.length,
        stderr: done.stderr.toString(),
      }),
      // A `$` that is not even started, as for an argument longer than the kernel takes.
      (error: unknown): Outcome => notStarted(error),
    );
  const first = await within(ended, limit);
  if (typeof first === "object") return first;
  for (const pid of await childrenWith(mark)) endProcess(pid);
  await within(ended, { timeoutMs: endTimeoutMs, signal: undefined });
  return first;
}

/** Why a program was not waited for any longer. */
type Cut = "late" | "stopped";

/** What comes of the promise within the limit. No timer or listener is left behind. */
async function within<T>(promise: Promise<T>, { timeoutMs, signal }: Limit): Promise<T | Cut> {
  const endMs = performance.now() + timeoutMs;
  const cut = Promise.withResolvers<Cut>();
  let timer = setTimeout(() => cut.resolve("late"), timeoutMs);
  const stop = (): void => {
    if (endMs - performance.now() <= stopTimeoutMs) return;
    clearTimeout(timer);
    timer = setTimeout(() => cut.resolve("stopped"), stopTimeoutMs);
  };
  signal?.addEventListener("abort", stop, { once: true });
  if (signal?.aborted === true) stop();
  try {
    return await Promise.race([promise, cut.promise]);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
  }
}

/** Process IDs of our own children whose environment holds this mark. */
async function childrenWith(mark: string): Promise<number[]> {
  const found: number[] = [];
  for (const name of await readdir("/proc")) {
    if (!/^[0-9]+$/.test(name)) continue;
    // A process that ends while we look, or belongs to another user, cannot be read and is not ours.
    const [stat, environ] = await Promise.all([
      readFile(`/proc/${name}/stat`, "latin1").catch(() => ""),
      readFile(`/proc/${name}/environ`, "latin1").catch(() => ""),
    ]);
    const parent = Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]);
    if (parent === process.pid && environ.split("\0").includes(`CLUSTERNET_CALL=${mark}`)) {
      found.push(Number(name));
    }
  }
  return found;
}

/** Ends a process, or the group that a negative number names, if there still is one. */
export function endProcess(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // It ended by itself between the look and the signal.
  }
}

function notStarted(error: unknown): Outcome {
  return { exitCode: 126, stdout: "", written: 0, stderr: messageOf(error) };
}

/** stderr is a pipe: a program that goes into the background closes it, so reading it to its end waits for no daemon. */
async function runSpawned(
  argv: readonly string[],
  env: Environment,
  limit: Limit,
  { detached, onOutput, libc }: Pick<CommandOptions, "detached" | "onOutput"> & { readonly libc: () => Libc },
): Promise<Outcome | Cut> {
  using opened = new DisposableStack();
  const how = { cwd: "/", env, stdin: "ignore", stderr: "pipe", detached: detached === true } as const;
  let pipe: PacedPipe | undefined;
  let child: Bun.Subprocess<"ignore", number | "ignore", "pipe">;
  try {
    if (onOutput !== undefined) pipe = opened.use(new PacedPipe(libc()));
    child = Bun.spawn([...argv], { ...how, stdout: pipe?.writer ?? "ignore" });
  } catch (error) {
    return notStarted(error);
  }
  pipe?.closeWriter();
  const said = child.stderr.text().catch(() => "");
  const handed =
    pipe === undefined || onOutput === undefined
      ? Promise.resolve(0)
      : handPieces(pipe, child.exited, onOutput).catch((error: unknown) => {
          // Nobody reads on, so it would wait for ever.
          child.kill("SIGKILL");
          throw error;
        });
  const atEnd = { timeoutMs: endTimeoutMs, signal: undefined };
  const ended = await within(Promise.all([child.exited, handed]), limit);
  if (typeof ended === "string") {
    child.kill("SIGKILL");
    // What it wrote before is of no use to anybody.
    await within(Promise.allSettled([child.exited, handed]), atEnd);
    return ended;
  }
  const [exitCode, written] = ended;
  return { exitCode, stdout: "", written, stderr: await within(said, atEnd) };
}

/** Hands on what comes, and returns how much that was; more than anybody wants to read is not handed on. */
async function handPieces(
  pipe: PacedPipe,
  ended: Promise<unknown>,
  onOutput: (piece: Uint8Array) => void,
): Promise<number> {
  let written = 0;
  await pipe.read((bytes) => {
    written += bytes.length;
    if (written <= maxOutputBytes) onOutput(bytes);
  }, ended);
  return written;
}

/** A line longer than this is no line of a program that we follow; what came so far is dropped. */
const maxLineCharacters = 64 * 1024;

/**
 * A FollowCommand. The program ends with `signal`, and also when this process is killed: where the setpriv(1) of
 * util-linux is there the kernel is asked to end the child with its parent; elsewhere it ends at the first line
 * that it cannot write.
 */
export function createFollowCommand(options: { readonly path?: string } = {}): FollowCommand {
  return async function* follow(argv, signal) {
    const path = options.path ?? Bun.env["PATH"] ?? defaultPath;
    const program = locate(argv, path);
    const child = Bun.spawn([...(await endedWithUs(path)), ...program], {
      cwd: "/",
      env: { PATH: path, LC_ALL: "C" },
      stdin: "ignore",
      stdout: "pipe",
      stderr: "ignore",
      // Ctrl-C is meant for this program, which then ends the other one.
      detached: true,
    });
    const reader = child.stdout.getReader();
    const end = (): void => {
      child.kill("SIGKILL");
      // Not waited for: whatever the program started may hold its end of the pipe open. A pipe that broke before
      // fails again here, and is told of by whoever reads it.
      void reader.cancel().catch(() => {});
    };
    signal.addEventListener("abort", end, { once: true });
    if (signal.aborted) end();
    try {
      const decoder = new TextDecoder();
      let rest = "";
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
        const lines = (rest + decoder.decode(piece.value, { stream: true })).split("\n");
        rest = lines.pop() ?? "";
        if (rest.length > maxLineCharacters) rest = "";
        yield* lines;
      }
    } finally {
      signal.removeEventListener("abort", end);
      end();
      await child.exited;
    }
  };
}

/** The words in front of a command that make it end with this process; none where setpriv is missing or, as busybox's, cannot do it. */
async function endedWithUs(path: string): Promise<readonly string[]> {
  const setpriv = findProgram("setpriv", path);
  const nothing = findProgram("true", path);
  if (setpriv === undefined || nothing === undefined) return [];
  const words = [setpriv, "--pdeathsig", "KILL", "--"];
  const trial = Bun.spawn([...words, nothing], { cwd: "/", stdio: ["ignore", "ignore", "ignore"] });
  return (await trial.exited) === 0 ? words : [];
}
