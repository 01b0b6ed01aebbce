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

export const silentLogger: Logger = { debug() {}, info() {}, warn() {}, error() {} };
