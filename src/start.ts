/**
 * Starts an agent: the place (lock), the key, the last file, the host as it is, and the loops made of them.
 *
 * Starting changes nothing that is right already, and the Curator is called meanwhile. What keeps the agent from starting
 * is thrown before anything was changed.
 */
import { begin, type Watched } from "./async.ts";
import { keyPathOf, pathOf, type Agent } from "./agent.ts";
import { secretForms, type PrivateKey } from "./core/key.ts";
import { describeInLine } from "./errors.ts";
import { createRunCommand, runUntil } from "./host/command.ts";
import { batchIp } from "./host/ip-batch.ts";
import { ensurePrivateDirectory, removeLeftovers, socketPath } from "./host/files.ts";
import type { LinuxHost } from "./host/host.ts";
import { ensureKeyFile, readKeyFile } from "./host/key-file.ts";
import { acquireLocks, acquireSoon, type Locks } from "./host/lock.ts";
import { MeshFile } from "./host/mesh-file.ts";
import { adoptFormerFiles, type AgentMemory } from "./host/state-file.ts";
import { chooseImplementation } from "./host/wireguard-go.ts";
import { Housekeeping } from "./housekeeping.ts";
import type { StatusHandlers } from "./status-socket.ts";
import type { UnderlayFollower } from "./underlay.ts";
import { version } from "./version.ts";
import {
  createAgentHost,
  createUnderlay,
  learnKeyOf,
  recall,
  unlessItMayPass,
  wire,
  type Wired,
} from "./wiring.ts";

/** Everything that one run has opened. */
export interface RunningAgent extends Wired {
  readonly startedAt: Date;
  readonly key: PrivateKey;
  readonly locks: Locks;
  readonly host: LinuxHost;
  readonly memory: AgentMemory;
  readonly underlay: UnderlayFollower;
  readonly housekeeping: Housekeeping;
}

/** What the agent is started with besides its options. */
export interface StartOptions {
  readonly handlers: StatusHandlers;
  /** Nothing is told to a Curator before it is true. */
  readonly mayTell: Watched<boolean>;
}

/**
 * Throws ClusternetError when the place is taken, the key cannot be used or the host has no WireGuard. The Curator is
 * followed from here on, until `signal` aborts, so that its picture comes while this host is read. Undefined, and nothing
 * is held, when `signal` aborts before all is read: also soon where programs hang.
 */
export async function startAgent(
  agent: Agent,
  { handlers, mayTell }: StartOptions,
  signal: AbortSignal,
): Promise<RunningAgent | undefined> {
  const { dataDirectory, interfaceName, clusterNets, clock } = agent;
  const startedAt = clock.wallTime();
  socketPath(dataDirectory, interfaceName);
  await ensurePrivateDirectory(dataDirectory);
  const places = { dataDirectory, interfaceName, clusterNets: clusterNets.map(({ text }) => text) };
  const locks = await acquireSoon(() => acquireLocks(places), { clock, signal });
  if (locks === undefined) return undefined;
  try {
    const started = await startInPlace(agent, { locks, handlers, mayTell, signal });
    if (started !== undefined) return { startedAt, locks, ...started };
    locks.release();
    return undefined;
  } catch (error) {
    locks.release();
    throw error;
  }
}

/** The rest, in a place that is held. */
async function startInPlace(
  agent: Agent,
  {
    locks,
    handlers,
    mayTell,
    signal,
  }: StartOptions & { readonly locks: Locks; readonly signal: AbortSignal },
): Promise<Omit<RunningAgent, "startedAt" | "locks"> | undefined> {
  const { dataDirectory, interfaceName, wireguard, curator, problems, log, clock } = agent;
  const run = batchIp(createRunCommand());
  const choose = () => chooseImplementation({ run: runUntil(run, signal), wireguard });
  // Before a key is made: a host that cannot run this is left as it was.
  if ((await readKeyFile(keyPathOf(agent))) === undefined) {
    await unlessItMayPass(agent, choose());
    if (signal.aborted) return undefined;
  }
  const { key, made, problems: keyProblems } = await ensureKeyFile(keyPathOf(agent));
  for (const form of secretForms(key)) log.redact(form);
  if (made) log.info("Made a private key", { publicKey: key.publicKey });
  await tidyDirectory(agent);
  problems.replace("key", keyProblems);
  const memory = await recall(agent, { write: true });
  const events = begin(curator.follow(signal));
  const ourKeys = new Set([key.publicKey]);
  const host = createAgentHost(agent, run, { ourKeys, memory });
  const file = new MeshFile(pathOf(agent, "conf"));
  const underlay = createUnderlay(agent, run);
  const [last, seenFirst] = await Promise.all([
    file.read(key.publicKey),
    unlessItMayPass(agent, host.readFirst(signal)),
    underlay.read(signal),
  ]);
  if (signal.aborted) return undefined;
  problems.replace("last-file", last.kind === "none" ? [] : last.problems);
  const seen = learnKeyOf(last, ourKeys) ? await unlessItMayPass(agent, host.readFirst(signal)) : seenFirst;
  // An interface that is there tells what it uses; trying it out would make and delete a link. On a host that could
  // not be read nothing is tried: the first apply does, and tries again.
  const implementation =
    seen === undefined
      ? undefined
      : (seen.interface?.implementation ?? (await unlessItMayPass(agent, choose())));
  if (signal.aborted) return undefined;
  log.info("Agent starts", {
    version,
    node: agent.self,
    publicKey: key.publicKey,
    interface: interfaceName,
    wireguard: implementation ?? "unknown yet",
  });
  const housekeeping = new Housekeeping(
    { dataDirectory, interfaceName, key, credentials: curator.credentials, resyncMs: agent.resyncMs },
    { locks, memory, handlers, problems, log, clock },
  );
  const wired = wire(agent, { key, host, file, last, memory, seen, underlay, events, mayTell });
  return { key, host, memory, housekeeping, underlay, ...wired };
}

/** What a crash may have left goes; what a run with another --interface has left is gone on with. */
async function tidyDirectory({ dataDirectory, interfaceName, log }: Agent): Promise<void> {
  await removeLeftovers(dataDirectory, log);
  try {
    const former = await adoptFormerFiles(dataDirectory, interfaceName);
    if (former !== undefined) log.info("The interface has another name now", { former });
  } catch (error) {
    // A disk that cannot be written, say: the start goes on without.
    log.warn(describeInLine(error));
  }
}
