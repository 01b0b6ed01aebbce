/**
 * Version and commit of this program, put in by `bun run build`; a program run from its sources has neither.
 */
declare const CLUSTERNET_VERSION: string | undefined;
declare const CLUSTERNET_COMMIT: string | undefined;

/** As in package.json. */
export const version = typeof CLUSTERNET_VERSION === "string" ? CLUSTERNET_VERSION : "0.0.0-source";

/** Git commit that was built, with "-dirty" when files differed from it, or "unknown". */
export const commit = typeof CLUSTERNET_COMMIT === "string" ? CLUSTERNET_COMMIT : "unknown";
