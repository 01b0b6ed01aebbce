/**
 * Tells when somebody sets the time of day.
 *
 * Nothing of this program goes by it: every wait and every limit is counted by a clock that never jumps, and handshakes are
 * told by the time that is now (core/handshake-book.ts). But WireGuard puts it into each handshake that it begins, and
 * refuses from a peer one that is not later than the last: after a step back an operator sees sessions that end.
 */
import type { Clock } from "./async.ts";
import type { Logger } from "./log.ts";

const lookEveryMs = 10_000;
/** Between two looks the clock that is adjusted little by little moves by 5 ms at most. */
const stepMs = 2_000;

/** Until `signal` aborts. Never throws. */
export async function watchTimeOfDay(
  { clock, log }: { readonly clock: Clock; readonly log: Logger },
  signal: AbortSignal,
): Promise<void> {
  let beforeMs = clock.timeSetMs();
  while (!signal.aborted) {
    await clock.sleep(lookEveryMs, signal);
    const nowMs = clock.timeSetMs();
    const byMs = nowMs - beforeMs;
    beforeMs = nowMs;
    const seconds = Math.round(Math.abs(byMs) / 1_000);
    if (byMs <= -stepMs) {
      log.warn(
        "The time of day was set back: until it is again what it was, other nodes refuse the sessions that this node begins; those that they begin work",
        { seconds },
      );
    } else if (byMs >= stepMs) {
      log.info("The time of day was set forward", { seconds });
    }
  }
}
