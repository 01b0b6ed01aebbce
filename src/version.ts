/**
 * Version and commit of this program. `bun run build` puts both in; from its sources, as a library is used, the version
 * is package.json's and the commit unknown.
 */
import packageJson from "../package.json" with { type: "json" };

declare const CLUSTERNET_VERSION: string | undefined;
declare const CLUSTERNET_COMMIT: string | undefined;

/** As in package.json. */
export const version: string =
  typeof CLUSTERNET_VERSION === "string" ? CLUSTERNET_VERSION : packageJson.version;

/** Git commit that was built, with "-dirty" when files differed from it, or "unknown". */
export const commit = typeof CLUSTERNET_COMMIT === "string" ? CLUSTERNET_COMMIT : "unknown";
