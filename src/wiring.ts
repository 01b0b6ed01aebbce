/**
 * The parts of one agent, made of its settings and of what the start has found; for a run and for a preview alike.
 */
import { Value, type Watched } from "./async.ts";
import { keyPathOf, pathOf, type Agent } from "./agent.ts";
import { rememberedCurator } from "./core/curators.ts";
import type { SeenHost } from "./core/host-state.ts";
import type { PrivateKey, PublicKey } from "./core/key.ts";
import type { StreamEvent } from "./curator/follower.ts";
import { ClusternetError, describeInLine, exitStatus } from "./errors.ts";
import { createFollowCommand, type RunCommand } from "./host/command.ts";
import { createHost, type HostOptions, type LinuxHost } from "./host/host.ts";
import { findHeldNetworks } from "./host/lock.ts";
import type { LastMesh, MeshFile } from "./host/mesh-file.ts";
import { AgentMemory, readBootId, StateFile } from "./host/state-file.ts";
import {
  alwaysAnswered,
  lastPodPrefixes,
  readOwn,
  type Own,
  type OwnSettings,
  type OwnSources,
} from "./own.ts";
import { Pull } from "./pull.ts";
import { Push } from "./push.ts";
import { Tracker } from "./tracker.ts";
import { UnderlayFollower } from "./underlay.ts";

/** What the start has found, of which the loops are made. */
export interface Found {
  readonly key: PrivateKey;
  readonly host: LinuxHost;
  readonly file: MeshFile;
  readonly last: LastMesh;
  readonly memory: AgentMemory;
  /** Absent: the host could not be read. */
  readonly seen: SeenHost | undefined;
  readonly underlay: UnderlayFollower;
  /** The streams of the Curator, when they are followed already. */
  readonly events?: AsyncIterable<StreamEvent>;
  /** Nothing is told to a Curator before it is true. Default: at once. */
  readonly mayTell?: Watched<boolean>;
}

/** The loops, and what they share. */
export interface Wired {
  readonly own: Value<Own>;
  readonly ownSettings: OwnSettings;
  readonly sources: OwnSources;
  readonly tracker: Tracker;
  readonly pull: Pull;
  readonly push: Push;
}

/** Puts pull and push together. */
export function wire(
  agent: Agent,
  { key, host, file, last, memory, seen, underlay, events, mayTell = new Value(true) }: Found,
): Wired {
  const { self, clusterNets, curator, network, interfaceName, listenPort, keepaliveSeconds } = agent;
  const { problems, log, clock, podNetworkState = new Value(alwaysAnswered) } = agent;
  const shared = { problems, log, clock };
  const ownSettings = { self, publicKey: key.publicKey, clusterNets };
  const sources: OwnSources = {
    podNetwork: agent.localKubernetesPodNetwork,
    podNetworkState,
    lastPodPrefixes: lastPodPrefixes(memory.get().podNetwork, podNetworkState.get()),
    network: network === "auto" ? underlay.network : network,
    mtu: underlay.mtu,
  };
  const own = new Value(readOwn(ownSettings, sources));
  const tracker = new Tracker({
    self,
    fromFile: last.kind === "mesh" ? last.nodes : [],
    complete: isComplete(seen, last),
  });
  const pull = new Pull(
    {
      interfaceName,
      privateKey: key,
      listenPort,
      clusterNets,
      resyncMs: agent.resyncMs,
      ...(keepaliveSeconds === undefined ? {} : { keepaliveSeconds }),
      keepFile: last.kind === "unusable",
      ...(last.kind === "mesh" ? { fileTime: last.writtenAt } : {}),
      ...(seen === undefined ? {} : { seen }),
    },
    {
      tracker,
      curator,
      ...(events === undefined ? {} : { events }),
      host,
      file,
      own,
      ...shared,
      onResync: () => underlay.hint(),
    },
  );
  const push = new Push(
    { self, reportStatus: agent.reportStatus },
    { own, pull: pull.state, connection: curator.connection, mayTell, ...shared },
  );
  return { own, ownSettings, sources, tracker, pull, push };
}

/** This host, kept as wanted. */
export function createAgentHost(
  agent: Agent,
  run: RunCommand,
  {
    ourKeys,
    memory,
    heldNetworks = () => findHeldNetworks(),
  }: Pick<HostOptions, "ourKeys" | "heldNetworks"> & { readonly memory: AgentMemory },
): LinuxHost {
  return createHost({
    run,
    follow: createFollowCommand(),
    interfaceName: agent.interfaceName,
    keyFile: keyPathOf(agent),
    configFile: pathOf(agent, "conf"),
    wireguard: agent.wireguard,
    memory,
    ourKeys,
    heldNetworks,
    log: agent.log,
    clock: agent.clock,
  });
}

/** The network below the mesh, followed. */
export function createUnderlay(agent: Agent, run: RunCommand): UnderlayFollower {
  const { clusterNets, interfaceName, mtu, network, curatorAddresses, resyncMs } = agent;
  return new UnderlayFollower(
    { clusterNets, interfaceName, mtu, announcesAddress: network === "auto", curatorAddresses, resyncMs },
    { run, curator: agent.curator, clock: agent.clock, log: agent.log },
  );
}

/**
 * What earlier runs have left to remember; the Curators among it are tried from here on. `former`: as an earlier run has
 * named the interface.
 */
export async function recall(
  agent: Agent,
  { write, former }: { readonly write: boolean; readonly former?: string | undefined },
): Promise<AgentMemory> {
  const file = new StateFile(pathOf(agent, "state", former), await readBootId());
  const state = await file.read(agent.log, { closeToOthers: write });
  agent.curator.learn(
    state.learnedCurators.flatMap((each) => rememberedCurator(each, agent.clusterNets) ?? []),
  );
  return new AgentMemory(state, write ? file : undefined);
}

/**
 * What the start finds out of this host. Throws what tells that something is missing (exit 69); undefined for a
 * failure that may pass, which is reported until the first apply knows better.
 */
export async function unlessItMayPass<T>({ problems }: Agent, found: Promise<T>): Promise<T | undefined> {
  try {
    return await found;
  } catch (error) {
    if (!(error instanceof ClusternetError) || error.exit === exitStatus.unavailable) throw error;
    problems.replace("host", [{ kind: "apply-failed", message: describeInLine(error) }]);
    return undefined;
  }
}

/** Adds the key that the file was written for: an interface that has it is ours (C4.11). False: it is known. */
export function learnKeyOf(last: LastMesh, ourKeys: Set<PublicKey>): boolean {
  if (last.kind === "none" || last.publicKey === undefined || ourKeys.has(last.publicKey)) return false;
  ourKeys.add(last.publicKey);
  return true;
}

/**
 * True when the interface has no peer that the last file does not name: then nothing that a Curator may still name is
 * removed by what is not wanted (C4.8). A file can be older than the interface, when it could not be written. Of a host
 * that could not be read the careful answer is no.
 */
function isComplete(seen: SeenHost | undefined, last: LastMesh): boolean {
  if (seen === undefined) return false;
  const { peers } = seen.interface ?? { peers: new Map() };
  // No two nodes of a file have one key.
  const named =
    last.kind === "mesh" ? last.nodes.filter(({ publicKey }) => peers.has(publicKey as PublicKey)) : [];
  return named.length === peers.size;
}
