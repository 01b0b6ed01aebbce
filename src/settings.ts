/**
 * Settings: flags as given become typed values, or one error that names the flag (or the variable), what was
 * found and what was expected.
 *
 * Pure: no file, clock or process is looked at. A value that is not of its flag's form is a UsageError (exit 64);
 * one of the right form that cannot be used is a SettingsError (exit 78). What only the host can tell (key file,
 * interface, credentials) is found by the commands.
 */
import type { NodeId } from "./core/node.ts";
import type { Address, Prefix } from "./core/prefix.ts";
import type { LogSettings } from "./log.ts";

/** A flag as it was given. */
export interface GivenFlag {
  /** As messages name it: `--listen-port`, or `CLUSTERNET_LISTEN_PORT` when it came from the environment. */
  readonly origin: string;
  /** One text, or several of a repeatable flag. A switch is 1, 0, true or false. */
  readonly texts: readonly string[];
}

/** Flags of one command by their names without dashes; what was not given is absent. */
export type GivenFlags = ReadonlyMap<string, GivenFlag>;

/** A host and a TCP port, as written by an operator. */
export interface HostPort {
  /** Name or canonical address, without brackets. */
  readonly host: string;
  /** Present when the host is written as an address. */
  readonly address?: Address;
  readonly port: number;
  /** HOST:PORT with IPv6 in brackets: what is dialled. */
  readonly text: string;
}

/** Where a node keeps its files and which interface it runs: what every command on it needs. */
export interface PlaceSettings {
  readonly dataDirectory: string;
  readonly interfaceName: string;
}

export interface RunSettings extends PlaceSettings {
  readonly log: LogSettings;
  /** At least one, in the order given; none of them inside ClusterNet. */
  readonly curators: readonly HostPort[];
  /** Given Curators inside ClusterNet: left out, to be reported. */
  readonly unusableCurators: readonly HostPort[];
  readonly nodeId: NodeId;
  /** No TLS; warned of at every start. The only way in this version. */
  readonly insecure: true;
  /** One per family at most, at least one. */
  readonly clusterNets: readonly Prefix[];
  readonly listenPort: number;
  /** As given. Those outside ClusterNet are still here: reported, not announced. */
  readonly podPrefixes: readonly Prefix[];
  readonly externalAddress: Address | "auto";
  readonly reportStatus: "auto" | "on" | "off";
  readonly mtu: number | "auto";
  readonly wireguard: "kernel" | "userspace" | "auto";
  /** Absent: no PersistentKeepalive. */
  readonly keepaliveSeconds?: number;
  readonly resyncSeconds: number;
  /** Present with `--once`. */
  readonly once?: { readonly timeoutSeconds: number; readonly dryRun: boolean };
}

export interface StatusSettings extends PlaceSettings {
  readonly json: boolean;
  /** Exit 3 when there is a problem or no agent runs. */
  readonly check: boolean;
}

export function parseRunSettings(_given: GivenFlags): RunSettings {
  throw new Error("unwritten");
}
