/**
 * Carries out the steps of a host plan, one after the other.
 *
 * A step that fails costs what depends on it and nothing else: a peer that `wg` refuses is found by halving and
 * reported, its neighbours are set all the same; a link that is not there lets the guard and the loopback addresses
 * be. Nothing here decides what is wanted, and nothing is tried again: the caller reads the host anew and plans.
 */
import type { PeerChange, Step } from "../core/host-plan.ts";
import { peerChunks, peersCommand, stepCommands, type CommandContext } from "../core/host-commands.ts";
import type { PublicKey } from "../core/key.ts";
import type { NodeId } from "../core/node.ts";
import type { Address } from "../core/prefix.ts";
import { quote, type Problem } from "../core/problem.ts";
import { ClusternetError, CommandError, messageOf } from "../errors.ts";
import type { RunCommand } from "./command.ts";

export interface ApplyOptions {
  readonly run: RunCommand;
  readonly context: CommandContext;
  readonly interfaceName: string;
  readonly listenPort: number;
  readonly nodeIdOf: (publicKey: PublicKey) => NodeId | undefined;
  /**
   * Called before a step that makes `wg` read a file, to throw when the file would not give what is wanted: `wg`
   * takes an empty key file, or a configuration without a key, as the order to clear the key.
   */
  readonly checkFiles: (step: Step) => Promise<void>;
  /** Remembers which loopback addresses are ours: before one is added, so that a crash leaves none behind unknown. */
  readonly rememberLoopback: (address: Address, ours: boolean) => Promise<void>;
  /** Called after each step that was carried out whole. */
  readonly onDone: (step: Step) => void;
  /** When it aborts, no further step is begun; one under way is finished, but that of peers after its next command. */
  readonly signal?: AbortSignal;
}

export interface Applied {
  /** Steps that were carried out whole, in order. */
  readonly done: readonly Step[];
  readonly problems: readonly Problem[];
  /** Steps that failed, were left out because of another that failed, or were not begun before `signal` aborted. */
  readonly left: readonly Step[];
}

/** `wg` of this release and later knows `+` and `-` before an allowed IP. */
const plusSince = 20_250_521;

/** Whether the `wg` that gave this text for `--version` knows `+` before an allowed IP; false for a text of another form. */
export function knowsPlusAllowedIps(version: string): boolean {
  return Number(/\bv\d+\.\d+\.(\d{8})\b/.exec(version)?.[1] ?? 0) >= plusSince;
}

/** A peer that `wg` refuses costs a few commands to find; beyond this many it is not the peers' fault. */
const maxRefusedPeers = 16;

/** Never throws for what the host refuses. */
export async function applySteps(steps: readonly Step[], options: ApplyOptions): Promise<Applied> {
  const done: Step[] = [];
  const left: Step[] = [];
  const problems: Problem[] = [];
  const failed = new Set<string>();
  for (const [index, step] of steps.entries()) {
    if (options.signal?.aborted === true) {
      left.push(...steps.slice(index));
      break;
    }
    if (needs(step).some((need) => failed.has(need))) {
      left.push(step);
      for (const gift of gives(step)) failed.add(gift);
      continue;
    }
    const found = await applyStep(step, options);
    if (found !== "stopped") problems.push(...found);
    if (found.length === 0) {
      done.push(step);
      options.onDone(step);
    } else {
      left.push(step);
      for (const gift of gives(step)) failed.add(gift);
    }
  }
  return { done, problems, left };
}

/** What later steps may need of this one. */
function gives(step: Step): string[] {
  switch (step.kind) {
    case "add-link":
    case "rename-link":
      return ["link", "up"];
    case "set-link":
      return step.up === true ? ["up"] : [];
    case "add-loopback":
      return [`source ${step.address.text}`];
    case "set-route":
      return [`route ${step.network.family}`];
    case "delete-link":
    case "set-device":
    case "sync-conf":
    case "set-peers":
    case "remove-loopback":
    case "delete-route":
    case "add-guard":
    case "delete-guard":
      return [];
  }
  return step satisfies never;
}

function needs(step: Step): string[] {
  switch (step.kind) {
    case "set-link":
    case "set-device":
    case "sync-conf":
    case "set-peers":
      return ["link"];
    case "set-route":
      return ["up", ...(step.src === undefined ? [] : [`source ${step.src.text}`])];
    // Its removal would take the route along that still has it as source.
    case "remove-loopback":
      return [`route ${step.address.family}`];
    case "add-link":
    case "rename-link":
    case "delete-link":
    case "add-loopback":
    case "delete-route":
    case "add-guard":
    case "delete-guard":
      return [];
  }
  return step satisfies never;
}

async function applyStep(step: Step, options: ApplyOptions): Promise<Problem[] | "stopped"> {
  switch (step.kind) {
    case "set-peers":
      return await setPeers(step.name, step.changes, options);
    case "add-loopback":
      return await addLoopback(step, options);
    case "remove-loopback": {
      const problems = await runAll(step, options);
      if (problems.length === 0) await options.rememberLoopback(step.address, false);
      return problems;
    }
    case "set-device":
    case "sync-conf":
      try {
        await options.checkFiles(step);
      } catch (error) {
        return [failure(step, error, options)];
      }
      return await runAll(step, options);
    case "add-link":
    case "rename-link":
    case "delete-link":
    case "set-link":
    case "set-route":
    case "delete-route":
    case "add-guard":
    case "delete-guard":
      return await runAll(step, options);
  }
  return step satisfies never;
}

/** Every command of the step, stopping at the first that fails. */
async function runAll(step: Step, options: ApplyOptions): Promise<Problem[]> {
  try {
    for (const argv of stepCommands(step, options.context)) {
      // wireguard-go stays behind, and must outlive this program and its process group.
      await options.run(argv, argv[0] === "wireguard-go" ? { detached: true } : {});
    }
    return [];
  } catch (error) {
    return [failure(step, error, options)];
  }
}

async function addLoopback(
  step: Extract<Step, { kind: "add-loopback" }>,
  options: ApplyOptions,
): Promise<Problem[]> {
  await options.rememberLoopback(step.address, true);
  try {
    for (const argv of stepCommands(step, options.context)) await options.run(argv);
    return [];
  } catch (error) {
    // Somebody else was faster, so it is not ours. After any other failure it may have been added all the same.
    if (isThereAlready(error)) await options.rememberLoopback(step.address, false);
    return [failure(step, error, options)];
  }
}

function isThereAlready(error: unknown): boolean {
  return error instanceof CommandError && /File exists|already assigned/.test(error.stderr);
}

function failure(step: Step, error: unknown, { interfaceName, listenPort }: ApplyOptions): Problem {
  if (isPortTaken(step, error)) return portInUse(interfaceName, listenPort);
  return { kind: "apply-failed", message: `Cannot ${describeStep(step)}: ${explain(error)}` };
}

function isPortTaken(step: Step, error: unknown): boolean {
  return (
    (step.kind === "set-device" || step.kind === "set-link" || step.kind === "sync-conf") &&
    error instanceof CommandError &&
    error.stderr.includes("Address already in use")
  );
}

/** The problem of a UDP port that somebody else holds. */
export function portInUse(interfaceName: string, listenPort: number): Problem {
  return {
    kind: "port-in-use",
    message: `Cannot listen on UDP port ${listenPort} for interface ${quote(interfaceName)}: the port is in use (ss -ulpn shows by whom)`,
  };
}

function explain(error: unknown): string {
  const hint = error instanceof ClusternetError && error.hint !== undefined ? ` (${error.hint})` : "";
  return `${messageOf(error)}${hint}`;
}

/** What a step does, to stand after "Cannot". */
function describeStep(step: Step): string {
  switch (step.kind) {
    case "add-link":
      return `create interface ${quote(step.name)}`;
    case "rename-link":
      return `name interface ${quote(step.from)} back to ${quote(step.to)}`;
    case "delete-link":
      return `remove interface ${quote(step.name)}`;
    case "set-link":
      return `${step.up === true ? "set up" : "change"} interface ${quote(step.name)}`;
    case "set-device":
      return `set key and port of interface ${quote(step.name)}`;
    case "sync-conf":
      return `load the mesh into interface ${quote(step.name)}`;
    case "set-peers":
      return `set peers of interface ${quote(step.name)}`;
    case "add-loopback":
      return `add address ${step.address.text} to lo`;
    case "remove-loopback":
      return `remove address ${step.address.text} from lo`;
    case "set-route":
      return `route ${step.network.text} into interface ${quote(step.device)}`;
    case "delete-route":
      return `remove the route of ${step.network.text}`;
    case "add-guard":
      return `guard ${step.network.text} by an unreachable route`;
    case "delete-guard":
      return `remove the guard of ${step.network.text}`;
  }
  return step satisfies never;
}

/** Sets peers in as few commands as fit; a command that fails is halved until the peer that it fails for stands alone. */
async function setPeers(
  name: string,
  changes: readonly PeerChange[],
  options: ApplyOptions,
): Promise<Problem[] | "stopped"> {
  const problems: Problem[] = [];
  const waiting: (readonly PeerChange[])[] = peerChunks(changes, options.context);
  for (let portion = waiting.shift(); portion !== undefined; portion = waiting.shift()) {
    if (options.signal?.aborted === true) return problems.length > 0 ? problems : "stopped";
    try {
      await options.run(peersCommand(name, portion, options.context));
    } catch (error) {
      const [first] = portion;
      if (first === undefined) continue;
      if (isAboutInterface(error) || problems.length >= maxRefusedPeers) {
        const rest = portion.length + waiting.reduce((sum, each) => sum + each.length, 0);
        problems.push({
          kind: "apply-failed",
          message: `Cannot set ${rest} ${rest === 1 ? "peer" : "peers"} of interface ${quote(name)}: ${explain(error)}`,
        });
        return problems;
      }
      if (portion.length === 1) {
        problems.push(peerFailure(first, error, options));
      } else {
        const half = Math.ceil(portion.length / 2);
        // In their order: a peer that goes gives its prefixes up before another takes them.
        waiting.unshift(portion.slice(0, half), portion.slice(half));
      }
    }
  }
  return problems;
}

/**
 * The interface is gone, or `wg` is, or its time ran out: halving would only fail more often. "Protocol not supported"
 * is what `wg` says of an interface of wireguard-go that goes just then, where the kernel has no WireGuard.
 */
function isAboutInterface(error: unknown): boolean {
  return (
    !(error instanceof CommandError) ||
    error.exitCode === undefined ||
    /Unable to access interface|No such device|Protocol not supported/.test(error.stderr)
  );
}

function peerFailure({ publicKey }: PeerChange, error: unknown, { nodeIdOf }: ApplyOptions): Problem {
  const nodeId = nodeIdOf(publicKey);
  return {
    kind: "apply-failed",
    ...(nodeId === undefined ? {} : { nodeId }),
    message: `Cannot set peer ${publicKey}: ${explain(error)}`,
  };
}
