/**
 * Follows the underlay: the external address with "auto", and the MTU of the mesh interface.
 *
 * Looks at start, when the kernel tells of a change, when another Curator is connected (the route to it decides) and
 * at every resync, in the same instant as the host is read (host/ip-batch.ts). What cannot be read is logged, leaves the
 * last values as they are and is tried again soon. A connection to the Curator from an address that has gone from the host
 * is dead, which TCP finds out late: it is made anew at once, so that the new address is announced within two seconds.
 */
import { Backoff, Bell, Value, aborted, applyBackoff, pulseMs, type Clock } from "./async.ts";
import type { Address, Prefix } from "./core/prefix.ts";
import type { Problem } from "./core/problem.ts";
import {
  chooseExternalAddress,
  chooseMtu,
  hasAddress,
  isDecidedByCurator,
  routedDevices,
  type Underlay,
} from "./core/underlay.ts";
import type { CuratorFollower } from "./curator/follower.ts";
import { describeInLine } from "./errors.ts";
import { runUntil, type RunCommand } from "./host/command.ts";
import { readUnderlay } from "./host/underlay.ts";
import type { Logger } from "./log.ts";
import type { NetworkStatus } from "./own.ts";

/**
 * Read at least this often, however long the resync: of a new route to the Curator that is no default route no hint
 * comes, since on a node with pods routes come and go all the time.
 */
const longestUnreadMs = 60_000;

export interface UnderlaySettings {
  readonly clusterNets: readonly Prefix[];
  readonly interfaceName: string;
  readonly mtu: number | "auto";
  /** The address that is found is the one to announce. */
  readonly announcesAddress: boolean;
  /** HOST:PORT of the Curators that are tried, in order. */
  readonly curatorAddresses: readonly string[];
  /** How often it is read without a hint, but for `longestUnreadMs`. */
  readonly resyncMs: number;
}

export interface UnderlayParts {
  readonly run: RunCommand;
  readonly curator: Pick<CuratorFollower, "state" | "reconnect">;
  readonly clock: Clock;
  readonly log: Logger;
}

export interface MtuChoice {
  readonly mtu: number;
  readonly problems: readonly Problem[];
}

export class UnderlayFollower {
  /** Undefined until the underlay has been read; without address when no route leads to one that can be announced. */
  readonly network = new Value<NetworkStatus | undefined>(undefined);
  readonly mtu: Value<MtuChoice>;
  readonly #settings: UnderlaySettings;
  readonly #parts: UnderlayParts;
  readonly #bell = new Bell();
  #address: Address | undefined;
  #devices: readonly string[] = [];
  /** Addresses that connections to the Curator may have come from. */
  #sources: ReadonlySet<string> = new Set();
  readonly #backoff: Backoff;
  /** When it is read without a hint. */
  #dueMs: number;
  /** The last reading did. */
  #failed = false;
  #lastTurnMs = 0;
  #looked = false;

  constructor(settings: UnderlaySettings, parts: UnderlayParts) {
    this.#settings = settings;
    this.#parts = parts;
    this.#backoff = new Backoff(applyBackoff, parts.clock);
    this.#dueMs = this.#restEndMs();
    const { mtu } = settings;
    this.mtu = new Value(
      mtu === "auto" ? chooseMtu({ devices: [], defaultRoutes: [] }, settings) : { mtu, problems: [] },
    );
  }

  /** When the loop last turned, by the clock's `nowMs`. */
  get lastTurnMs(): number {
    return this.#lastTurnMs;
  }

  /** Names of the devices whose changes matter, as last seen. */
  get devices(): readonly string[] {
    return this.#devices;
  }

  /** Something about links, addresses or routes may have changed. */
  hint(): void {
    this.#bell.poke();
  }

  /** Until `signal` aborts. Never throws. */
  async run(signal: AbortSignal): Promise<void> {
    const { curator, clock } = this.#parts;
    const watchCurator = async (): Promise<void> => {
      let last: string | undefined;
      for await (const { address } of curator.state.watch(signal)) {
        if (address === last) continue;
        last = address;
        this.#bell.poke();
      }
    };
    const stopped = aborted(signal);
    const look = async (): Promise<void> => {
      while (!signal.aborted) {
        this.#lastTurnMs = clock.nowMs();
        const waitMs = Math.min(Math.max(0, this.#dueMs - this.#lastTurnMs), pulseMs);
        const isHinted = await this.#bell.wait(waitMs, signal, clock);
        if (!isHinted && clock.nowMs() < this.#dueMs) continue;
        // A reading changes nothing, so one that hangs is left behind when the agent stops.
        if (!signal.aborted) await Promise.race([this.read(signal), stopped]);
      }
    };
    await Promise.all([watchCurator(), look()]);
  }

  /** Looks once; when that fails `run` tries again soon. Never throws. Programs that hang end soon after `signal` aborts. */
  async read(signal?: AbortSignal): Promise<void> {
    const { run, log, clock } = this.#parts;
    try {
      this.#choose(
        await readUnderlay({
          run: runUntil(run, signal),
          curatorHosts: this.#curatorHosts(),
          isEnough: (underlay) => isDecidedByCurator(underlay, this.#settings, this.#address),
        }),
      );
      if (this.#failed) log.info("The underlay can be read again");
      this.#failed = false;
      this.#backoff.reset();
      this.#dueMs = this.#restEndMs();
    } catch (error) {
      this.#dueMs = Math.min(this.#restEndMs(), clock.nowMs() + this.#backoff.next());
      // Said once, not at every try.
      if (!this.#failed) {
        log.warn("Cannot read the underlay, going on with what was known of it", {
          error: describeInLine(error),
        });
      }
      this.#failed = true;
    }
  }

  #restEndMs(): number {
    return this.#parts.clock.nowMs() + Math.min(this.#settings.resyncMs, longestUnreadMs);
  }

  #choose(underlay: Underlay): void {
    const { settings, log } = { settings: this.#settings, log: this.#parts.log };
    this.#devices = routedDevices(underlay, settings);
    this.#checkSources(underlay);
    const address = chooseExternalAddress(underlay, settings, this.#address);
    if (this.network.get() === undefined || address?.text !== this.#address?.text) {
      this.#address = address;
      this.network.set(address === undefined ? {} : { externalAddress: address.text });
      if (settings.announcesAddress) {
        log.info("External address of this node", { externalAddress: address?.text ?? "none" });
      }
    }
    if (settings.mtu !== "auto") return;
    const next = chooseMtu(underlay, settings);
    const before = this.mtu.get();
    if (JSON.stringify(next) !== JSON.stringify(before)) this.mtu.set(next);
  }

  /**
   * Before anything is announced: over a dead connection it would wait for an answer that does not come. Nor are attempts
   * waited for that were begun without this way to the Curator.
   */
  #checkSources(underlay: Underlay): void {
    const { curator, log } = this.#parts;
    const source = underlay.curatorRoute?.source?.text;
    const gone = [...this.#sources].filter((text) => !hasAddress(underlay, this.#settings, text));
    const isBack = this.#looked && source !== undefined && this.#sources.size === 0;
    this.#looked = true;
    if (gone.length > 0) {
      log.info("Connecting to the Curator anew: the address of the connection has gone from this host", {
        gone: gone.join(", "),
      });
      curator.reconnect("the address that the connection was made from is gone");
    } else if (isBack && curator.state.get().state === "connecting") {
      curator.reconnect("there is a way to it again");
    }
    const stay = gone.length > 0 ? [] : [...this.#sources];
    this.#sources = new Set([...stay, ...(source === undefined ? [] : [source])]);
  }

  /** The one in use first: its route decides. */
  #curatorHosts(): readonly string[] {
    const { address } = this.#parts.curator.state.get();
    const all = [...(address === undefined ? [] : [address]), ...this.#settings.curatorAddresses];
    return [...new Set(all.map(hostOf))];
  }
}

function hostOf(address: string): string {
  return address.replace(/:[0-9]+$/, "").replace(/^\[(.*)\]$/, "$1");
}
