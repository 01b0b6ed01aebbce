/**
 * The log: one event a line on stderr, the message first, then key=value fields (or one JSON object a line).
 */

export type LogFields = Readonly<Record<string, string | number | boolean | undefined>>;

/** What every part logs to. A message is a sentence a stranger can act on; transitions are logged, not loops. */
export interface Logger {
  debug(message: string, fields?: LogFields): void;
  info(message: string, fields?: LogFields): void;
  warn(message: string, fields?: LogFields): void;
  error(message: string, fields?: LogFields): void;
}

/** A logger that can be told secrets: a text given to `redact` never appears in any later line. */
export interface RedactingLogger extends Logger {
  redact(secret: string): void;
}

export const silentLogger: RedactingLogger = { debug() {}, info() {}, warn() {}, error() {}, redact() {} };

export type LogLevel = "debug" | "info" | "warn" | "error";

export interface LogSettings {
  readonly format: "text" | "json";
  /** What is below it is left out. */
  readonly level: LogLevel;
}
