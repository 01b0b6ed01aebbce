/**
 * The log: one event a line on stderr, the message first, then key=value fields (or one JSON object a line).
 *
 * Guarantees: a line is one line and safe for a terminal whatever foreign text it shows; a text that was given
 * to `redact` never appears; a stderr that cannot be written costs lines, never the agent.
 *
 * Our own because LogTape (2.4.2) is configured by one registry for the whole process, so two agents in a test
 * would share a log, and pino writes from a worker or buffers, so that the last line before a crash is lost.
 */
import { systemClock, type Clock } from "./async.ts";
import { escapeUnsafe } from "./core/printable.ts";

export type LogFields = Readonly<Record<string, string | number | boolean | undefined>>;

/** What every part logs to. A message is a sentence a stranger can act on; transitions are logged, not loops. */
export interface Logger {
  debug(message: string, fields?: LogFields): void;
  info(message: string, fields?: LogFields): void;
  warn(message: string, fields?: LogFields): void;
  error(message: string, fields?: LogFields): void;
}

/** A logger that can be told secrets: a text given to `redact` never appears in any later line, or not before `until` aborts. */
export interface RedactingLogger extends Logger {
  redact(secret: string, until?: AbortSignal): void;
}

export const silentLogger: RedactingLogger = { debug() {}, info() {}, warn() {}, error() {}, redact() {} };

export type LogLevel = "debug" | "info" | "warn" | "error";

export interface LogSettings {
  readonly format: "text" | "json";
  /** What is below it is left out. */
  readonly level: LogLevel;
}

export const defaultLogSettings: LogSettings = { format: "text", level: "info" };

const levels: readonly LogLevel[] = ["debug", "info", "warn", "error"];

/** What the log does besides `Logger`: `main` prints its last words through the same redaction. */
export interface Log extends RedactingLogger {
  /** Writes text of several lines as it is, secrets redacted, with a line end. */
  print(text: string): void;
}

/** A log that hands whole lines, with their line end, to `write`. `write` must not throw. */
export function createLog(
  settings: LogSettings,
  write: (line: string) => void,
  clock: Pick<Clock, "wallTime"> = systemClock,
): Log {
  const secrets = new Set<string>();
  const print = (line: string): void => {
    let shown = line;
    for (const secret of secrets) shown = shown.replaceAll(secret, "[redacted]");
    write(`${shown}\n`);
  };
  const least = levels.indexOf(settings.level);
  const render = settings.format === "json" ? renderJsonLine : renderTextLine;
  const at =
    (level: LogLevel) =>
    (message: string, fields: LogFields = {}): void => {
      if (levels.indexOf(level) >= least) print(render(clock.wallTime(), level, message, fields));
    };
  return {
    debug: at("debug"),
    info: at("info"),
    warn: at("warn"),
    error: at("error"),
    print,
    redact: (secret, until) => {
      // Nothing is between any two characters, so an empty secret would redact everything.
      if (secret === "") return;
      secrets.add(secret);
      until?.addEventListener("abort", () => void secrets.delete(secret), { once: true });
    },
  };
}

/** Shorter than this a secret is a word, or a part of many, and a log without it could not be read. */
const leastSecretCharacters = 8;
/** Lines of some large keys, or tokens of some hours. */
const mostRecentSecrets = 128;

/**
 * Secrets that others take the place of as time goes by, kept out of a log. Only the newest: a token that is new every
 * two minutes would fill the memory in a year, and each line is searched for every one.
 */
export class RecentSecrets {
  readonly #log: Pick<RedactingLogger, "redact">;
  /** The one that was used last at the end. */
  readonly #ends = new Map<string, AbortController>();

  constructor(log: Pick<RedactingLogger, "redact">) {
    this.#log = log;
  }

  /** From now on no line shows any of these. */
  use(secrets: readonly string[]): void {
    for (const secret of secrets) {
      if (secret.length < leastSecretCharacters) continue;
      const known = this.#ends.get(secret);
      const end = known ?? new AbortController();
      if (known === undefined) this.#log.redact(secret, end.signal);
      this.#ends.delete(secret);
      this.#ends.set(secret, end);
    }
    for (const [secret, end] of this.#ends) {
      if (this.#ends.size <= mostRecentSecrets) break;
      this.#ends.delete(secret);
      end.abort();
    }
  }
}

function renderTextLine(time: Date, level: LogLevel, message: string, fields: LogFields): string {
  let line = `${time.toISOString()} ${level.toUpperCase().padEnd(5)} ${escapeUnsafe(message)}`;
  for (const [key, value] of Object.entries(fields)) {
    if (value !== undefined) line += ` ${key}=${renderTextValue(String(value))}`;
  }
  return line;
}

function renderTextValue(value: string): string {
  // Bare only when nobody can take it for something else: a space, a quote or = would read as another field.
  return /^[^\s"=\\]+$/.test(value) && escapeUnsafe(value) === value
    ? value
    : escapeUnsafe(JSON.stringify(value));
}

const ownKeys: ReadonlySet<string> = new Set(["time", "level", "message"]);

function renderJsonLine(time: Date, level: LogLevel, message: string, fields: LogFields): string {
  const line: Record<string, unknown> = { time: time.toISOString(), level, message };
  for (const [key, value] of Object.entries(fields)) {
    line[ownKeys.has(key) ? `${key}_` : key] =
      typeof value === "number" && !Number.isFinite(value) ? String(value) : value;
  }
  return escapeUnsafe(JSON.stringify(line));
}
