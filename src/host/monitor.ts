/**
 * Hints from the kernel: something changed that may concern us, so look at the host now instead of at the next resync.
 *
 * Reads `ip -o monitor` line by line and believes none of it; a line is only a reason to look. Lines about other
 * links and their routes, of which a node with pods has many, are left out, and hints are spaced, so that a host on which links come
 * and go all the time costs two readings a second at most. The program is started again when it ends; for what changed
 * before it listened there is a hint a second after each start.
 */
import { Backoff, type BackoffSchedule, type Clock } from "../async.ts";
import { messageOf } from "../errors.ts";
import type { Logger } from "../log.ts";
import type { FollowCommand } from "./command.ts";

/** What belongs together comes within this time: a link that goes takes its routes along. */
const gatherMs = 50;
/** Least time between two hints. */
const spacingMs = 500;
/** By then `ip monitor` listens, also on a busy machine: it takes some milliseconds. */
const listenMs = 1_000;
const restartBackoff: BackoffSchedule = { firstMs: 500, capMs: 30_000 };
/** A program that has run so long has worked; one that ends sooner has not, whatever it has said. */
const steadyMs = 5_000;

export interface MonitorOptions {
  readonly follow: FollowCommand;
  readonly log: Logger;
  readonly clock: Clock;
  /** What concerns us as of now. */
  readonly concern: () => Concern;
}

export interface Concern {
  readonly interfaceName: string;
  /** Index of the interface, by which it is known when renamed. */
  readonly index?: number;
  /** Texts of the networks that are routed. */
  readonly networks: readonly string[];
  /** Names of the devices that the underlay is made of. */
  readonly underlayDevices: readonly string[];
}

/** What may have changed. */
export interface Hint {
  /** What this program keeps on the host. */
  readonly mesh: boolean;
  /** Addresses, routes and devices that the mesh runs over. */
  readonly underlay: boolean;
}

const nothing: Hint = { mesh: false, underlay: false };

/**
 * What a line of `ip -o monitor link address route` may tell of: the mesh by our link, `lo` and our routes, the underlay by
 * its devices, the default routes, and the addresses of any device, since one that can be announced may come anywhere.
 */
export function hintOf(line: string, concern: Concern): Hint {
  const { interfaceName, index, networks, underlayDevices } = concern;
  const words = line.split(/\s+/);
  const at = words[0] === "Deleted" ? 1 : 0;
  const first = words[at] ?? "";
  // "3: clusternet: <…>" of a link ("3: eth0@if4: <…>" of half a pair), "3: clusternet    inet …" of an address.
  const second = words[at + 1]?.replace(/(@[^:]*)?:$/, "");
  const link = /^(\d+):$/.exec(first)?.[1];
  if (link !== undefined && second !== undefined) {
    const isOurs = second === interfaceName || Number(link) === index;
    const isAddress = /^inet6?$/.test(words[at + 2] ?? "");
    // A device of our name is among them when it is somebody else's.
    const isUnderlay = underlayDevices.includes(second);
    const mayAnnounce = isAddress && (isUnderlay || !isOurs);
    return {
      mesh: isOurs || second === "lo",
      underlay: mayAnnounce ? words[words.indexOf("scope") + 1] === "global" : isUnderlay,
    };
  }
  if (first === "default") return { mesh: false, underlay: true };
  // "10.192.0.0/11 dev clusternet …", "unreachable 10.192.0.0/11 …".
  const isOurs =
    networks.includes(first) ||
    (second !== undefined && networks.includes(second)) ||
    words[words.indexOf("dev") + 1] === interfaceName;
  return { mesh: isOurs, underlay: false };
}

/** Yields what may have changed until `signal` aborts. Never throws. */
export async function* followHints(options: MonitorOptions, signal: AbortSignal): AsyncIterable<Hint> {
  const { clock } = options;
  const stop = new AbortController();
  const end = AbortSignal.any([signal, stop.signal]);
  const bell = new HintBell();
  const reading = readMonitor(options, bell, end);
  try {
    while (!signal.aborted) {
      await bell.rung(signal);
      if (signal.aborted) return;
      await clock.sleep(gatherMs, signal);
      yield bell.take();
      await clock.sleep(spacingMs - gatherMs, signal);
    }
  } finally {
    stop.abort();
    await reading;
  }
}

/** Gathers hints until they are taken, unlike async.ts' Bell, which forgets when waited for. */
class HintBell {
  #next = Promise.withResolvers<void>();
  #gathered = nothing;

  ring(hint: Hint): void {
    const { mesh, underlay } = this.#gathered;
    this.#gathered = { mesh: mesh || hint.mesh, underlay: underlay || hint.underlay };
    if (hint.mesh || hint.underlay) this.#next.resolve();
  }

  take(): Hint {
    const gathered = this.#gathered;
    this.#gathered = nothing;
    this.#next = Promise.withResolvers<void>();
    return gathered;
  }

  /** Resolves when rung, or when `signal` aborts; leaves no listener on a signal that lives as long as the program. */
  async rung(signal: AbortSignal): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    const wake = (): void => resolve();
    signal.addEventListener("abort", wake, { once: true });
    if (signal.aborted) wake();
    await Promise.race([this.#next.promise, promise]);
    signal.removeEventListener("abort", wake);
  }
}

async function ringLater(bell: HintBell, clock: Clock, signal: AbortSignal): Promise<void> {
  await clock.sleep(listenMs, signal);
  if (!signal.aborted) bell.ring({ mesh: true, underlay: true });
}

async function readMonitor(
  { follow, log, clock, concern }: MonitorOptions,
  bell: HintBell,
  signal: AbortSignal,
): Promise<void> {
  const backoff = new Backoff(restartBackoff, clock);
  let told = false;
  while (!signal.aborted) {
    let reason = "it ended";
    const startMs = clock.nowMs();
    const ended = new AbortController();
    const until = AbortSignal.any([signal, ended.signal]);
    // It does not tell when it listens, and of what came before that it says nothing.
    const listening = ringLater(bell, clock, until);
    try {
      for await (const line of follow(["ip", "-o", "monitor", "link", "address", "route"], signal)) {
        bell.ring(hintOf(line, concern()));
      }
    } catch (error) {
      reason = messageOf(error);
    }
    ended.abort();
    await listening;
    if (signal.aborted) return;
    if (clock.nowMs() - startMs >= steadyMs) {
      backoff.reset();
      told = false;
    }
    if (!told) log.warn("Changes made by others are noticed late: ip monitor is started again", { reason });
    told = true;
    await clock.sleep(backoff.next(), signal);
  }
}
