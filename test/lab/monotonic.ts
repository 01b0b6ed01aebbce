/**
 * The kernel's monotonic clock, which every process of this machine reads alike.
 *
 * `performance.now()` and `process.hrtime()` of Bun begin with each process, and the time of day steps.
 */
import { dlopen, ptr } from "bun:ffi";

const monotonic = 1;
const libc = dlopen("libc.so.6", { clock_gettime: { args: ["i32", "ptr"], returns: "i32" } });
const time = new BigInt64Array(2);
const address = ptr(time);

/** Milliseconds since some instant that is the same for all processes. */
export function monotonicMs(): number {
  if (libc.symbols.clock_gettime(monotonic, address) !== 0)
    throw new Error("Cannot read the monotonic clock");
  const [seconds = 0n, nanoseconds = 0n] = time;
  return Number(seconds) * 1e3 + Number(nanoseconds) / 1e6;
}
