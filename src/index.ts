/**
 * The library: `import { Service, Prefixes } from "clusternet"`.
 *
 * `Service` is what Monogon's Go package of this name documents: the cluster networking mesh of one node. It is given
 * a Curator client, the network to route into the mesh, a data directory, and two watched values: the local pod
 * prefixes and the status of the network with the external address. It runs until its signal aborts.
 */
export type { ServiceOptions } from "./agent.ts";
export { Value, type Clock, type Watched } from "./async.ts";
export {
  createCurator,
  type CuratorClientBasics,
  type CuratorClientOptions,
  type InsecureCurators,
  type TrustedCurators,
} from "./curator/client.ts";
export type { CuratorFollower, CuratorState } from "./curator/follower.ts";
export type { Address, Prefix } from "./core/prefix.ts";
export type { Problem, ProblemKind } from "./core/problem.ts";
export { ClusternetError, describeError } from "./errors.ts";
export {
  kubernetesPodNetwork,
  type KubernetesOptions,
  type KubernetesPodNetwork,
} from "./kubernetes/node-source.ts";
export { createLog, type LogFields, type Logger, type LogSettings, type RedactingLogger } from "./log.ts";
export type { NetworkStatus, SourceState } from "./own.ts";
export type { Preview } from "./preview.ts";
export { Prefixes } from "./prefixes.ts";
export { Service } from "./service.ts";
export type { Status } from "./status.ts";
export type { CredentialFiles } from "./trust/credential-files.ts";
