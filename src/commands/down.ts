/**
 * `clusternet down`: takes interface, route, guard and loopback addresses away, as far as they are ours.
 *
 * Key and mesh file stay, so that the next `run` is the same node. Works without an agent and refuses while one
 * runs. What is not ours is left alone and reported; nothing of ours there is success, also without a data
 * directory, since that is how it looks the second time.
 */
import { join } from "node:path";
import { renderStep } from "../core/host-commands.ts";
import { isRoutedElsewhere } from "../core/host-plan.ts";
import { type PublicKey, privateKeyFromBytes } from "../core/key.ts";
import { containsAddress, parseAddress, type Prefix } from "../core/prefix.ts";
import { quote } from "../core/problem.ts";
import {
  ClusternetError,
  type ExitStatus,
  SettingsError,
  describeInLine,
  exitStatus,
  isSystemError,
} from "../errors.ts";
import { createFollowCommand, createRunCommand, findProgram, type RunCommand } from "../host/command.ts";
import { removeLeftovers } from "../host/files.ts";
import { createHost } from "../host/host.ts";
import { keyFileName, readKeyFile } from "../host/key-file.ts";
import {
  type Locks,
  type PlaceRemedies,
  acquireFreeNetworks,
  acquireInterfaceLock,
  acquireLocks,
  acquireSoon,
  findHeldNetworks,
} from "../host/lock.ts";
import { MeshFile } from "../host/mesh-file.ts";
import type { HostMemory, HostRemembers } from "../host/ownership.ts";
import { readHost } from "../host/read.ts";
import { type AgentState, StateFile, findFormerFiles, readBootId } from "../host/state-file.ts";
import type { Logger } from "../log.ts";
import type { PlaceSettings } from "../settings.ts";
import { ordinaryUser, placeCommand, runAsRoot } from "./as-root.ts";
import { findClusterNets } from "./cluster-nets.ts";
import type { CommandContext } from "./context.ts";

/** Throws ClusternetError with exit 75 while an agent runs, with 69 when a program is missing. */
export async function down(
  place: PlaceSettings,
  context: Pick<CommandContext, "log" | "clock" | "signal">,
): Promise<ExitStatus> {
  if (findProgram("ip") === undefined) {
    throw new ClusternetError('Cannot run "ip": not found in PATH', {
      exit: exitStatus.unavailable,
      hint: "Install iproute2",
    });
  }
  const held = await acquireSoon(() => holdPlace(place), context);
  // Stopped before it took anything away.
  if (held === undefined) return exitStatus.unexpected;
  const { locks, hasDirectory } = held;
  try {
    // No start may come after this one.
    if (hasDirectory) await removeLeftovers(place.dataDirectory, context.log);
    return await takeAway(place, context);
  } finally {
    locks.release();
  }
}

/** Whoever runs this wants the mesh of the other process away, not one beside it. */
const remedies: PlaceRemedies = {
  directory: "Stop that process first, then run this again",
  name: () => "Stop that process first (ss -xap shows it to root), then run this again",
};

/** Where there is no data directory none is made for this; the interface is held all the same, so that no agent begins to use it. */
function holdPlace(place: PlaceSettings): {
  readonly locks: Pick<Locks, "release">;
  readonly hasDirectory: boolean;
} {
  try {
    return { locks: acquireLocks(place, remedies), hasDirectory: true };
  } catch (error) {
    const isMissing =
      error instanceof SettingsError &&
      ["ENOENT", "ENOTDIR"].some((code) => isSystemError(error.cause, code));
    if (!isMissing) throw error;
    return { locks: acquireInterfaceLock(place.interfaceName, remedies), hasDirectory: false };
  }
}

async function takeAway(
  { dataDirectory, interfaceName }: PlaceSettings,
  { log, clock }: Pick<CommandContext, "log" | "clock">,
): Promise<ExitStatus> {
  const pathOf = (ending: string): string => join(dataDirectory, `${interfaceName}.${ending}`);
  const stateFile = new StateFile(pathOf("state"), await readBootId());
  const state = await stateFile.read(log);
  const last = await new MeshFile(pathOf("conf")).read();
  const run = createRunCommand();
  const memory = memoryOf(stateFile, state);
  const host = createHost({
    run,
    follow: createFollowCommand(),
    interfaceName,
    keyFile: join(dataDirectory, keyFileName),
    configFile: pathOf("conf"),
    wireguard: "auto",
    memory,
    ourKeys: new Set(last.kind === "none" || last.publicKey === undefined ? [] : [last.publicKey]),
    heldNetworks: () => findHeldNetworks(),
    log,
    clock,
  });
  const clusterNets = await findClusterNets(state, interfaceName, run);
  const publicKey = await ownKey(join(dataDirectory, keyFileName), log);
  // An agent whose interface is away just now has nothing but the guard to show that the network is its own.
  const networks = acquireFreeNetworks(clusterNets.map(({ text }) => text));
  for (const { network, holder } of networks.held) {
    log.info("Route and guard stay: another agent keeps them", { network, holder });
  }
  const keptByOthers = new Set(networks.held.map(({ network }) => network));
  const { complete, done, problems } = await host
    .down({ interfaceName, clusterNets, publicKey, keptByOthers })
    .finally(() => networks.release());
  for (const step of done) log.info(`Done: ${renderStep(step)}`);
  const nets = clusterNets.filter(({ text }) => !keptByOthers.has(text));
  // What is remembered still could not be taken away, which is told with the problems.
  const other = await findOther({ dataDirectory, interfaceName }, log);
  const remembered = new Set(
    [...memory.get().loopbackAddresses, ...(other?.state.loopbackAddresses ?? [])].map(({ text }) => text),
  );
  await warnOfLeft(nets, { remembered, interfaceName, run, log });
  for (const problem of problems) log.warn(problem.message, { problem: problem.kind });
  if (other !== undefined) {
    log.warn(
      `Not taken away is what an agent with this data directory has under interface ${quote(other.interfaceName)}; ` +
        `hint: run \`${placeCommand("down", { dataDirectory, interfaceName: other.interfaceName })}\``,
    );
  }
  if (complete) return other === undefined ? exitStatus.ok : exitStatus.unexpected;
  const user = ordinaryUser();
  if (user !== undefined) {
    const hint = runAsRoot("down", { dataDirectory, interfaceName });
    log.warn(
      `Cannot take the mesh away as user ${user}: interface, routes and files are for root; hint: ${hint}`,
    );
  }
  return findProgram("wg") === undefined ? exitStatus.unavailable : exitStatus.unexpected;
}

/** What an earlier run has left under another interface's name, when none has under this one. */
async function findOther(
  { dataDirectory, interfaceName }: PlaceSettings,
  log: Logger,
): Promise<{ readonly interfaceName: string; readonly state: AgentState } | undefined> {
  const former = await findFormerFiles(dataDirectory, interfaceName);
  if (former === undefined) return undefined;
  const state = await new StateFile(join(dataDirectory, `${former}.state`), await readBootId()).read(log);
  const isLeft = state.clusterNets.length > 0 || state.loopbackAddresses.length > 0;
  return isLeft ? { interfaceName: former, state } : undefined;
}

/**
 * What is remembered was taken away; of any other address inside a ClusterNet nobody can tell any more whether an earlier
 * run added it, as when the state file was lost. Where an agent's mesh is up still, the address may be that agent's.
 */
async function warnOfLeft(
  clusterNets: readonly Prefix[],
  {
    remembered,
    interfaceName,
    run,
    log,
  }: {
    readonly remembered: ReadonlySet<string>;
    readonly interfaceName: string;
    readonly run: RunCommand;
    readonly log: Logger;
  },
): Promise<void> {
  const ourKeys = new Set<PublicKey>();
  const seen = await readHost({ run, interfaceName, networks: clusterNets, ourKeys }).catch(
    (error: unknown) => {
      // What keeps the host from being read is told with the problems.
      if (error instanceof ClusternetError) return undefined;
      throw error;
    },
  );
  if (seen === undefined) return;
  const nets = clusterNets.filter((network) => !isRoutedElsewhere(seen, network, interfaceName));
  const left = seen.loopback
    .filter((text) => !remembered.has(text))
    .map(parseAddress)
    .filter((address) => nets.some((net) => containsAddress(net, address)));
  for (const address of left) {
    const command = renderStep({ kind: "remove-loopback", address });
    log.warn(
      "An address inside the cluster network stays on lo: nothing remembers that this program added it. If it did: " +
        command,
      { address: address.text },
    );
  }
}

/** The node's key, or one that no interface has: then only what the files name, or the group, makes one ours. */
async function ownKey(path: string, log: Logger): Promise<PublicKey> {
  try {
    const found = await readKeyFile(path);
    if (found !== undefined) return found.key.publicKey;
  } catch (error) {
    if (!(error instanceof SettingsError)) throw error;
    log.warn(describeInLine(error));
  }
  return privateKeyFromBytes(crypto.getRandomValues(new Uint8Array(32))).publicKey;
}

function memoryOf(file: StateFile, state: AgentState): HostMemory {
  let remembers: HostRemembers = state;
  return {
    get: () => remembers,
    set: async (next) => {
      remembers = next;
      const { learnedCurators, podNetwork } = state;
      await file.write({ ...next, learnedCurators, podNetwork });
    },
  };
}
