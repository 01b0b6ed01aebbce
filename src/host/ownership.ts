/**
 * What on this host is ours, as it is known over restarts (C4.3, C4.11).
 *
 * What could be left behind is handed to the `HostMemory` before the host is changed, and what is there alone after a
 * whole apply. Nothing is written that is remembered already. A memory that cannot be written holds nothing back: what
 * is lost with it is only the clean-up.
 */
import { networksKey } from "../core/host-model.ts";
import { strayNetworks } from "../core/host-plan.ts";
import type { Owned, SeenHost, WantedHost } from "../core/host-state.ts";
import type { PublicKey } from "../core/key.ts";
import { containsAddress, unusableReason, type Address, type Prefix } from "../core/prefix.ts";
import { messageOf } from "../errors.ts";
import type { Logger } from "../log.ts";

/** What of the host must be known after a restart. */
export interface HostRemembers {
  /** Added to `lo` by this program in this boot, and not taken away since. */
  readonly loopbackAddresses: readonly Address[];
  /** Every ClusterNet that may still be routed or guarded. */
  readonly clusterNets: readonly Prefix[];
  readonly interfaceName?: string;
  readonly listenPort?: number;
}

/** Keeps `HostRemembers` over restarts. */
export interface HostMemory {
  get(): HostRemembers;
  /** Remembers durably. A rejection is logged and the host changed all the same: what is lost is only the clean-up. */
  set(next: HostRemembers): Promise<void>;
}

export interface OwnershipParts {
  readonly memory: HostMemory;
  /** Public keys that files of ours name, besides the wanted one (C4.11); more may be added while this runs. */
  readonly ourKeys: ReadonlySet<PublicKey>;
  readonly log: Logger;
  /**
   * Texts of the networks that some agent routes: of a former one that is among them, route and guard are that agent's
   * now, also while its interface is away. Default: nobody else does.
   */
  readonly heldNetworks?: () => ReadonlySet<string>;
}

export class Ownership {
  readonly #parts: OwnershipParts;
  /** Left by an earlier run that could not remember them, or of which what it remembered is lost. */
  #forgotten: readonly Prefix[] = [];

  constructor(parts: OwnershipParts) {
    this.#parts = parts;
  }

  /** What is ours when this is wanted. */
  of({ clusterNets, publicKey }: Pick<WantedHost, "clusterNets" | "publicKey">): Owned {
    const now = new Set(clusterNets.map((network) => network.text));
    const { interfaceName } = this.#parts.memory.get();
    const former = this.networks([]).filter((network) => !now.has(network.text));
    // Looked up only where there is something to take away. Held by nobody: an agent that takes it in this moment finds
    // its guard gone, and puts it back.
    const held = former.length === 0 ? undefined : this.#parts.heldNetworks?.();
    return {
      addedLoopback: new Set(this.#loopback(clusterNets).map((address) => address.text)),
      ourKeys: this.keys(publicKey),
      formerClusterNets: former.filter((network) => held?.has(network.text) !== true),
      ...(interfaceName === undefined ? {} : { begunInterface: interfaceName }),
    };
  }

  /** The keys of which any makes an interface ours. */
  keys(wanted?: PublicKey): ReadonlySet<PublicKey> {
    const { ourKeys } = this.#parts;
    return wanted === undefined ? ourKeys : new Set([...ourKeys, wanted]);
  }

  /** ClusterNets to look at: those wanted, and those that an earlier run may have left. */
  networks(wanted: readonly Prefix[]): readonly Prefix[] {
    const all = [...wanted, ...this.#parts.memory.get().clusterNets, ...this.#forgotten];
    return [...new Map(all.map((network) => [network.text, network])).values()];
  }

  /** The name of the interface of an earlier run, when it was another one. */
  formerName({ interfaceName }: Pick<WantedHost, "interfaceName">): string | undefined {
    const name = this.#parts.memory.get().interfaceName;
    return name === interfaceName ? undefined : name;
  }

  /** The interface of the earlier run is gone, or nobody's business any more. */
  async forgetFormer({ interfaceName }: Pick<WantedHost, "interfaceName">): Promise<void> {
    await this.#remember({ ...this.#parts.memory.get(), interfaceName });
  }

  async noteLoopback(address: Address, isOurs: boolean): Promise<void> {
    const before = this.#parts.memory.get();
    const others = before.loopbackAddresses.filter((each) => each.text !== address.text);
    await this.#remember({ ...before, loopbackAddresses: isOurs ? [...others, address] : others });
  }

  /** What the host shows to be ours without being remembered is a former ClusterNet too. */
  noteSeen(seen: SeenHost, { clusterNets }: Pick<WantedHost, "clusterNets">): void {
    this.#forgotten = strayNetworks(seen, clusterNets);
  }

  /** Before the first change: what may be left behind when this process dies now. */
  async noteBefore({ clusterNets, interfaceName, listenPort }: WantedHost): Promise<void> {
    const before = this.#parts.memory.get();
    await this.#remember({
      ...before,
      clusterNets: this.networks(clusterNets),
      interfaceName: before.interfaceName ?? interfaceName,
      listenPort,
    });
  }

  /** After a whole apply: only what is there. `loopback`: texts of the addresses on `lo`. */
  async noteAfter(
    { clusterNets, interfaceName, listenPort }: WantedHost,
    loopback: readonly string[],
  ): Promise<void> {
    const before = this.#parts.memory.get();
    const there = new Set(loopback);
    this.#forgotten = [];
    await this.#remember({
      ...before,
      loopbackAddresses: this.#loopback(clusterNets).filter((address) => there.has(address.text)),
      clusterNets,
      interfaceName: before.interfaceName ?? interfaceName,
      listenPort,
    });
  }

  /** After `down`: what was there is gone. */
  async noteDown(): Promise<void> {
    const { loopbackAddresses } = this.#parts.memory.get();
    await this.#remember({ loopbackAddresses, clusterNets: [] });
  }

  /**
   * Addresses that are remembered as added by us and can be: only those inside a ClusterNet ever are. A file that
   * names ::1 or an address of somebody else's must not take it away.
   */
  #loopback(wanted: readonly Prefix[]): readonly Address[] {
    const { loopbackAddresses, clusterNets } = this.#parts.memory.get();
    const networks = [...clusterNets, ...wanted];
    return loopbackAddresses.filter(
      (address) =>
        unusableReason(address) === undefined &&
        networks.some((network) => containsAddress(network, address)),
    );
  }

  async #remember(next: HostRemembers): Promise<void> {
    const { memory, log } = this.#parts;
    if (textOf(memory.get()) === textOf(next)) return;
    try {
      await memory.set(next);
    } catch (error) {
      log.warn("What was changed on this host may be unknown after a restart", { reason: messageOf(error) });
    }
  }
}

/** The same for what is remembered alike. */
function textOf({ loopbackAddresses, clusterNets, interfaceName, listenPort }: HostRemembers): string {
  return [
    loopbackAddresses.map(({ text }) => text).join(" "),
    networksKey(clusterNets),
    interfaceName,
    listenPort,
  ].join("|");
}
