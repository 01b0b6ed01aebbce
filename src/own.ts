/**
 * What this node itself claims, as it changes: external address, pod prefixes, MTU.
 */
import type { Value, Watched } from "./async.ts";
import { planAnnouncement, type OwnClaim } from "./core/announcement.ts";
import type { PublicKey } from "./core/key.ts";
import type { NodeId } from "./core/node.ts";
import { containsAddress, parseAddress, unusableReason, type Address, type Prefix } from "./core/prefix.ts";
import type { Problem } from "./core/problem.ts";
import { messageOf } from "./errors.ts";
import type { RememberedPodNetwork } from "./host/state-file.ts";
import type { Prefixes } from "./prefixes.ts";

/** What the library's users tell of the network: as of the Go package, the external address and no more. */
export interface NetworkStatus {
  /** Of this node, as text in any spelling; absent while there is none. */
  readonly externalAddress?: string;
}

/** How a source of pod prefixes is doing, besides what it gives. */
export interface SourceState {
  /** False: it has said nothing since the start, so that what it gives is not yet all there is. */
  readonly answered: boolean;
  readonly problems: readonly Problem[];
  /**
   * Which source this is, the same in every run: what one source has given is not gone on with for another. Default: "".
   */
  readonly source?: string;
  /** What it alone has given, for the next run to go on with; default: all that `localKubernetesPodNetwork` is. */
  readonly given?: readonly Prefix[];
}

/** The state of a source that always knows. */
export const alwaysAnswered: SourceState = { answered: true, problems: [] };

/** What is missing of this node's own claims until its source has answered, in words. */
export const sourceIsSilent = "the source of this node's pod prefixes has not answered";

/** What of the run before this source may go on with until it has answered. */
export function lastPodPrefixes(
  remembered: RememberedPodNetwork | undefined,
  { source = "" }: SourceState,
): readonly Prefix[] {
  return remembered?.source === source ? remembered.prefixes : [];
}

/** What the next run may go on with, of a source that has answered. */
export function podNetworkToRemember(
  all: Prefixes | undefined,
  { source = "", given = [...(all ?? [])] }: SourceState,
): RememberedPodNetwork {
  return { source, prefixes: given };
}

/** The newest of everything that this node says of itself. */
export interface Own {
  readonly externalAddress?: Address;
  readonly claim: OwnClaim;
  /** Of the mesh interface. */
  readonly mtu: number;
  readonly problems: readonly Problem[];
}

export interface OwnSettings {
  readonly self: NodeId;
  readonly publicKey: PublicKey;
  readonly clusterNets: readonly Prefix[];
}

export interface OwnSources {
  readonly podNetwork: Watched<Prefixes | undefined>;
  readonly podNetworkState: Watched<SourceState>;
  /** As the run before knew it: what it gave out stays until the source has answered. */
  readonly lastPodPrefixes: readonly Prefix[];
  readonly network: Watched<NetworkStatus | undefined>;
  readonly mtu: Watched<{ readonly mtu: number; readonly problems: readonly Problem[] }>;
}

/** What the sources say now. */
export function readOwn(settings: OwnSettings, sources: OwnSources): Own {
  const { mtu, problems: mtuProblems } = sources.mtu.get();
  const { answered, problems: sourceProblems } = sources.podNetworkState.get();
  const address = decodeExternalAddress(settings, sources.network.get());
  const externalAddress = "address" in address ? address.address : undefined;
  const claim = planAnnouncement({
    self: settings.self,
    publicKey: settings.publicKey,
    clusterNets: settings.clusterNets,
    podPrefixes: [...(sources.podNetwork.get() ?? []), ...(answered ? [] : sources.lastPodPrefixes)],
    ...(externalAddress === undefined ? {} : { externalAddress }),
  });
  return {
    claim,
    mtu,
    problems: [
      ...claim.problems,
      ...mtuProblems,
      ...sourceProblems,
      ...("problem" in address ? [address.problem] : []),
    ],
    ...(externalAddress === undefined ? {} : { externalAddress }),
  };
}

/** Follows the sources until `signal` aborts; sets `own` only when something differs. */
export async function followOwn(
  settings: OwnSettings,
  sources: OwnSources,
  own: Value<Own>,
  signal: AbortSignal,
): Promise<void> {
  const follow = async (source: Watched<unknown>): Promise<void> => {
    for await (const _changed of source.watch(signal)) {
      const next = readOwn(settings, sources);
      if (!sameOwn(own.get(), next)) own.set(next);
    }
  };
  await Promise.all(
    [sources.podNetwork, sources.podNetworkState, sources.network, sources.mtu].map((source) =>
      follow(source),
    ),
  );
}

function decodeExternalAddress(
  { self, clusterNets }: OwnSettings,
  network: NetworkStatus | undefined,
): { readonly address: Address | undefined } | { readonly problem: Problem } {
  if (network?.externalAddress === undefined) return { address: undefined };
  try {
    const address = parseAddress(network.externalAddress);
    const reason =
      unusableReason(address) ??
      (clusterNets.some((net) => containsAddress(net, address)) ? "inside ClusterNet" : undefined);
    if (reason === undefined) return { address };
    const message = `Cannot use this node's external address ${address.text}: ${reason}`;
    return { problem: { kind: "address-invalid", nodeId: self, message } };
  } catch (error) {
    return { problem: { kind: "address-invalid", nodeId: self, message: messageOf(error) } };
  }
}

function sameOwn(a: Own, b: Own): boolean {
  const text = ({ claim, mtu, externalAddress, problems }: Own): string =>
    JSON.stringify([
      mtu,
      externalAddress?.text,
      claim.announcement.prefixes.map((each) => each.text),
      claim.loopbackAddresses.map((each) => each.text),
      problems,
    ]);
  return text(a) === text(b);
}
