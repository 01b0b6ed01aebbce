/**
 * Text that does nothing to a terminal, whoever wrote it.
 */

/**
 * What moves a cursor, ends a line or turns text around: C0, DEL, C1, line separators, directions. JSON alone
 * escapes only the first.
 */
// oxlint-disable-next-line no-control-regex -- finding control characters is the purpose
const unsafe = /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;

const shortEscapes: Readonly<Record<string, string>> = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** The text on one line, such characters written as JSON writes them, so that JSON stays JSON. */
export function escapeUnsafe(text: string): string {
  return text.replace(
    unsafe,
    (character) => shortEscapes[character] ?? `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}
