/**
 * Text for people that does no more than it should, whoever wrote a part of it: nothing to a terminal, and as a command
 * that is pasted into a shell only what it says.
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

/** The words as one command for a shell: pasted there, they are these words again. */
export function shellCommand(words: readonly string[]): string {
  return words
    .map((word) => (/^[\w./:@+,-]+$/.test(word) ? word : `'${word.replaceAll("'", String.raw`'\''`)}'`))
    .join(" ");
}
