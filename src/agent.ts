/**
 * What a `Service` is given, checked and with every default, and what the parts of one agent share.
 */
import { join, resolve } from "node:path";
import { systemClock, type Clock, type Watched } from "./async.ts";
import { checkOptions, defaultListenPort } from "./checks.ts";
import { asNodeId, nodeIdProblem, type NodeId } from "./core/node.ts";
import type { Prefix } from "./core/prefix.ts";
import type { CuratorFollower } from "./curator/follower.ts";
import { ClusternetError } from "./errors.ts";
import { keyFileName } from "./host/key-file.ts";
import type { Implementation } from "./host/wireguard-go.ts";
import { silentLogger, type RedactingLogger } from "./log.ts";
import type { NetworkStatus, SourceState } from "./own.ts";
import type { Prefixes } from "./prefixes.ts";
import { ProblemLog } from "./problem-log.ts";

/** What the Go package's Service is given, and what a host may want otherwise than Metropolis does. */
export interface ServiceOptions {
  /** Whom to follow and announce to (`createCurator`). */
  readonly curator: CuratorFollower;
  /** This node's ID, as the Curator knows it. */
  readonly nodeId: string;
  /** The network that is routed into the mesh; one per address family at most. */
  readonly clusterNet: string | Prefix | readonly (string | Prefix)[];
  /** Where the WireGuard key is kept, and the mesh. Made when absent. */
  readonly dataDirectory: string;
  /** Prefixes to be announced into the mesh, as they change. */
  readonly localKubernetesPodNetwork: Watched<Prefixes | undefined>;
  /**
   * How the source of the pod network is doing. Until it has answered, the pod prefixes of the run before are announced
   * besides, so that a restart withdraws nothing; its problems are reported. Default: what it gives is all there is.
   */
  readonly podNetworkState?: Watched<SourceState>;
  /** This node's external address, as it changes; "auto": the source address of the route towards the Curator. */
  readonly network: Watched<NetworkStatus | undefined> | "auto";

  /** Default "clusternet". */
  readonly interfaceName?: string;
  /** UDP port, also assumed for every peer. Default 7838. */
  readonly listenPort?: number;
  /** Default "auto": MTU of the underlay less 80. */
  readonly mtu?: number | "auto";
  /** Default "auto": the kernel's where it has WireGuard. */
  readonly wireguard?: Implementation | "auto";
  /** PersistentKeepalive of every peer. Default: none. */
  readonly keepaliveSeconds?: number;
  /** How often the host is compared with what is wanted. Default 30. */
  readonly resyncSeconds?: number;
  /** Default "auto": when the Curator has missed a status for 10 s. */
  readonly reportStatus?: "auto" | "on" | "off";
  /** HOST:PORT of the Curators, for "auto" before one is connected. */
  readonly curatorAddresses?: readonly string[];
  readonly log?: RedactingLogger;
  readonly clock?: Clock;
}

const defaultResyncSeconds = 30;

/** The options of one agent, and what all its parts write to and go by. */
export interface Agent
  extends
    Required<Pick<ServiceOptions, "curator" | "dataDirectory" | "interfaceName" | "listenPort" | "network">>,
    Required<
      Pick<ServiceOptions, "mtu" | "wireguard" | "reportStatus" | "curatorAddresses" | "log" | "clock">
    >,
    Pick<ServiceOptions, "localKubernetesPodNetwork" | "podNetworkState" | "keepaliveSeconds"> {
  readonly self: NodeId;
  readonly clusterNets: readonly Prefix[];
  readonly resyncMs: number;
  readonly problems: ProblemLog;
}

/** Throws ClusternetError for an option that cannot be: what the command line refuses, this refuses too. */
export function createAgent(options: ServiceOptions): Agent {
  const self = asNodeId(options.nodeId);
  if (self === undefined) throw new ClusternetError(nodeIdProblem(options.nodeId));
  const clusterNets = checkOptions(options);
  const {
    interfaceName = "clusternet",
    listenPort = defaultListenPort,
    mtu = "auto",
    wireguard = "auto",
    reportStatus = "auto",
    resyncSeconds = defaultResyncSeconds,
    curatorAddresses = [],
    log = silentLogger,
    clock = systemClock,
  } = options;
  return {
    ...options,
    self,
    clusterNets,
    // `wg` and `ip` run in another directory than this program may.
    dataDirectory: resolve(options.dataDirectory),
    interfaceName,
    listenPort,
    mtu,
    wireguard,
    reportStatus,
    resyncMs: resyncSeconds * 1000,
    curatorAddresses,
    log,
    clock,
    problems: new ProblemLog(log, clock),
  };
}

/** Path of the private key's file. */
export function keyPathOf({ dataDirectory }: Agent): string {
  return join(dataDirectory, keyFileName);
}

/** Path of the file of the mesh, or of what is remembered; `former`: as an earlier run has named the interface. */
export function pathOf(
  { dataDirectory, interfaceName }: Agent,
  ending: "conf" | "state",
  former?: string,
): string {
  return join(dataDirectory, `${former ?? interfaceName}.${ending}`);
}
