/**
 * How large a test is: CI runs what fits into minutes, `bun run test:long` the full sizes.
 */

/** Whether the full sizes are wanted (CLUSTERNET_TEST_LONG=1). */
export const long = process.env["CLUSTERNET_TEST_LONG"] === "1";
