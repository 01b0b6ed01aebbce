/**
 * The executable: argv, environment, signals and exit status. The only place that ends the process.
 *
 * SIGTERM and SIGINT ask `run` and `curator` to stop; a second one ends the process at once. What is thrown on purpose is
 * printed as it says; anything else is a bug and is printed with its stack, exit 1. Either way without the keys that
 * the command has read, and no core dump holds them.
 */
import { systemClock } from "./async.ts";
import { execute, logSettingsOf, parseCommandLine } from "./cli.ts";
import { ClusternetError, UsageError, describeError, exitStatus, type ExitStatus } from "./errors.ts";
import { closeMemory } from "./host/closed-memory.ts";
import { type Log, type LogSettings, createLog, defaultLogSettings } from "./log.ts";
import { stderrWriter, writeStdout } from "./standard-streams.ts";

// First of all: no file or socket that is made later is readable by others, whoever started us.
process.umask(0o077);

const write = stderrWriter();

/** For commands that end by themselves: a signal ends them as it ends any program. */
const never = new AbortController().signal;

async function main(): Promise<ExitStatus> {
  let log = createLog(defaultLogSettings, write);
  let format = defaultLogSettings.format;
  const unexpected = (error: unknown): void => {
    report(log, format, error);
    process.exit(exitStatus.unexpected);
  };
  process.on("uncaughtException", unexpected);
  process.on("unhandledRejection", unexpected);
  try {
    const invocation = parseCommandLine(process.argv.slice(2), process.env);
    if (invocation.command === "usage") {
      write(invocation.text);
      return exitStatus.usage;
    }
    const settings = logSettingsOf(invocation);
    log = createLog(settings, write);
    format = settings.format;
    // Before any key is read, and not for help, which reads none and should come at once.
    if (invocation.command !== "help") for (const failed of closeMemory()) log.warn(failed);
    return await execute(invocation, {
      log,
      signal: invocation.command === "run" || invocation.command === "curator" ? stopSignal() : never,
      stdout: (text) => void writeStdout(text),
      terminal: process.stdout.isTTY,
      clock: systemClock,
    });
  } catch (error) {
    report(log, format, error);
    return error instanceof ClusternetError ? error.exit : exitStatus.unexpected;
  }
}

/** Says what ended the command: usage in one line, other errors with causes and hints, bugs with their stack. */
function report(log: Log, format: LogSettings["format"], error: unknown): void {
  const text =
    error instanceof UsageError
      ? error.message
      : error instanceof ClusternetError
        ? describeError(error)
        : `Unexpected error, please report it: ${stackOf(error)}`;
  // Whoever reads JSON lines must be able to read the last one too.
  if (format === "json") log.error(text);
  else log.print(text);
}

function stackOf(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const cause = error.cause === undefined ? "" : `\ncaused by ${stackOf(error.cause)}`;
  return `${error.stack ?? error.message}${cause}`;
}

function stopSignal(): AbortSignal {
  const stop = new AbortController();
  for (const name of ["SIGTERM", "SIGINT"] as const) {
    process.on(name, () => {
      if (stop.signal.aborted) process.exit(exitStatus.unexpected);
      stop.abort();
    });
  }
  return stop.signal;
}

process.exit(await main());
