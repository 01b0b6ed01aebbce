/**
 * Waiting for a state instead of for a time.
 *
 * Every wait in the tests has a limit and says what it waited for when the limit passes, so that a test
 * that hangs explains itself. A state is looked at every few milliseconds: none of the programs under
 * test tells an outsider when it is done.
 */

export interface WaitOptions {
  /** The wait fails after this time. */
  readonly limitMs: number;
  /** Completes the sentence "Waited … s in vain for …". */
  readonly what: string;
  /** Says more when the wait fails, like what a program printed. */
  readonly detail?: () => string;
  /** Pause between two looks. Default 20 ms. */
  readonly everyMs?: number;
}

/** For a state that is cheap to look at, in this process or in a file: a text is `what`. */
const cheap = { limitMs: 10_000, everyMs: 2 };

/**
 * Looks until `condition` gives something other than undefined or false, and returns that.
 * An error that `condition` throws counts as "not yet"; the last one is the cause when the limit passes.
 */
export async function waitFor<T>(
  condition: () => T | undefined | false | Promise<T | undefined | false>,
  how: WaitOptions | string,
): Promise<T> {
  const options: WaitOptions = typeof how === "string" ? { ...cheap, what: how } : how;
  const deadline = performance.now() + options.limitMs;
  let cause: unknown;
  for (;;) {
    try {
      const found = await condition();
      if (found !== undefined && found !== false) return found;
      cause = undefined;
    } catch (error) {
      cause = error;
    }
    if (performance.now() >= deadline) {
      throw new Error(
        `Waited ${options.limitMs / 1000} s in vain for ${options.what}${options.detail === undefined ? "" : `\n${options.detail()}`}`,
        cause === undefined ? undefined : { cause },
      );
    }
    await Bun.sleep(options.everyMs ?? 20);
  }
}

/** The value of `promise`, or an error that names `what` when it is not there after `limitMs`. */
export async function within<T>(promise: Promise<T>, limitMs: number, what: string): Promise<T> {
  const { promise: late, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(
    () => reject(new Error(`Waited ${limitMs / 1000} s in vain for ${what}`)),
    limitMs,
  );
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
