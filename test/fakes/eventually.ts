/**
 * Waits for a state, with a limit: what tests do instead of sleeping.
 */

/**
 * Resolves with the first value of `look` that is neither undefined nor false, looking every few milliseconds;
 * rejects after `limitMs` and says what was waited for.
 */
export async function eventually<T>(
  look: () => T | undefined | false | Promise<T | undefined | false>,
  waitedFor: string,
  limitMs = 10_000,
): Promise<T> {
  const endMs = performance.now() + limitMs;
  for (;;) {
    const found = await look();
    if (found !== undefined && found !== false) return found;
    if (performance.now() > endMs) throw new Error(`Waited ${limitMs} ms in vain for: ${waitedFor}`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
