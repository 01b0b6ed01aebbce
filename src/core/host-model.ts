/**
 * What is known of this host without looking (C4.9): as it was read, or as a plan that was carried out has left it, and
 * which wanted mesh its interface was brought to hold.
 *
 * A hint of the kernel makes all of it void, also for what was begun before the hint came and ends after it. Of the mesh
 * that was held more survives: the next reading says which peers show otherwise, and only those are looked at then.
 */
import type { Remembered, SeenHost, WantedHost } from "./host-state.ts";
import type { PublicKey } from "./key.ts";
import type { Prefix } from "./prefix.ts";

interface Known {
  readonly seen: SeenHost;
  /** Texts of the networks for which it was read. */
  readonly networks: string;
  readonly held?: WantedHost;
  readonly unsure?: ReadonlySet<PublicKey>;
}

export class HostModel {
  #generation = 0;
  /** Absent: the host must be read first. */
  #known: Known | undefined;
  /** What all peers were brought to or found to be, and those that may be otherwise since; absent: any may. */
  #held: { readonly wanted: WantedHost; readonly unsure: ReadonlySet<PublicKey> } | undefined;

  /** Raised by each `invalidate`: what was begun before it knows nothing of what it told of. */
  get generation(): number {
    return this.#generation;
  }

  /** Something may have changed: the host must be read. */
  invalidate(): void {
    this.#generation++;
    this.drop();
  }

  /** As `invalidate`, but for what is under way. */
  drop(): void {
    this.#known = undefined;
  }

  /** Any peer may be otherwise than was wanted: the next plan looks at all of them. */
  doubtPeers(): void {
    this.#held = undefined;
  }

  /** The host, if it is known with these networks. */
  seen(networks: readonly Prefix[]): SeenHost | undefined {
    return this.#known?.networks === networksKey(networks) ? this.#known.seen : undefined;
  }

  /** What a plan may rely on: the mesh that is held, but for peers that no plan has looked at yet. */
  get held(): Pick<Remembered, "held" | "unsure"> {
    const { held, unsure } = this.#known ?? {};
    return { ...(held === undefined ? {} : { held }), ...(unsure === undefined ? {} : { unsure }) };
  }

  /** Peers that were unsure when the mesh was last held and that the next plan does not look at: they are unsure still. */
  get unlooked(): Iterable<PublicKey> {
    return this.#known?.held === undefined || this.#known.unsure !== undefined
      ? []
      : (this.#held?.unsure ?? []);
  }

  /** Takes a reading begun in this generation. `changed`: peers that show otherwise than in the one before; absent: any may. */
  takeReading(
    seen: SeenHost,
    networks: readonly Prefix[],
    generation: number,
    changed: readonly PublicKey[] | undefined,
  ): void {
    this.#held =
      this.#held === undefined || changed === undefined
        ? undefined
        : { ...this.#held, unsure: new Set([...this.#held.unsure, ...changed]) };
    const held = this.#held === undefined ? {} : { held: this.#held.wanted, unsure: this.#held.unsure };
    if (generation === this.#generation) this.#known = { seen, networks: networksKey(networks), ...held };
  }

  /** Takes the host as a plan begun in this generation has left it. */
  take(seen: SeenHost, networks: readonly Prefix[], generation: number): void {
    if (generation === this.#generation) this.#known = { seen, networks: networksKey(networks) };
  }

  /** No other networks than these need be known from now on. */
  cover(networks: readonly Prefix[]): void {
    if (this.#known !== undefined) this.#known = { ...this.#known, networks: networksKey(networks) };
  }

  /** All of what is wanted is there, but `unsure` may be otherwise when it is read again. False when nothing is known any more. */
  hold(wanted: WantedHost, unsure: Iterable<PublicKey>): boolean {
    if (this.#known === undefined) return false;
    this.#known = { seen: this.#known.seen, networks: this.#known.networks, held: wanted };
    this.#held = { wanted, unsure: new Set(unsure) };
    return true;
  }
}

/** The same text for the same networks in whatever order. */
export function networksKey(networks: readonly Prefix[]): string {
  return networks
    .map((network) => network.text)
    .toSorted()
    .join(" ");
}
