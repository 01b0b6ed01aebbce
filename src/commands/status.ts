/**
 * `clusternet status`: the mesh as this node sees it, asked of the running agent.
 *
 * Without an agent, or with one that does not answer in time, it is read from the files and the interface; the status
 * then says that no agent runs, or which process does not answer, and null for what only an agent knows. Changes nothing, and makes no key. A user
 * who may look at nothing of it is told so once.
 */
import { existsSync } from "node:fs";
import { access, constants, statfs } from "node:fs/promises";
import { join } from "node:path";
import { defaultListenPort } from "../checks.ts";
import { judgeNode } from "../core/claim.ts";
import { foreignInterface } from "../core/host-plan.ts";
import type { SeenHost } from "../core/host-state.ts";
import type { PublicKey } from "../core/key.ts";
import { type Mesh, buildMesh, noIncumbents } from "../core/mesh.ts";
import type { Prefix } from "../core/prefix.ts";
import { quote, quotePath, type Problem } from "../core/problem.ts";
import {
  ClusternetError,
  type ExitStatus,
  describeInLine,
  exitStatus,
  isSystemError,
  systemReason,
} from "../errors.ts";
import { createRunCommand, type RunCommand } from "../host/command.ts";
import { openDirectoryProblems } from "../host/directory-mode.ts";
import { socketPath } from "../host/files.ts";
import { keyFileName, readKeyFile } from "../host/key-file.ts";
import { describeSilence, findHolderOf } from "../host/holder.ts";
import { type PlaceHolder, findPlaceHolders } from "../host/lock.ts";
import { type LastMesh, MeshFile } from "../host/mesh-file.ts";
import { readHost } from "../host/read.ts";
import { type AgentState, StateFile, findFormerFiles, readBootId } from "../host/state-file.ts";
import { silentLogger } from "../log.ts";
import { type PlaceSettings, type StatusSettings } from "../settings.ts";
import { type Status, buildStatus, noCurator } from "../status.ts";
import { fetchStatus } from "../status-socket.ts";
import { renderStatus } from "../status-text.ts";
import { credentialsIn } from "../trust/credential-files.ts";
import { openKeyProblems, readCredentials } from "../trust/credentials.ts";
import { version } from "../version.ts";
import { ordinaryUser, placeCommand, runAsRoot } from "./as-root.ts";
import { findClusterNets } from "./cluster-nets.ts";
import type { CommandContext } from "./context.ts";

/** An agent that is alive answers in milliseconds; one that was stopped never does. */
const askTimeoutMs = 2000;

const lookOnly = { closeToOthers: false } as const;

/** 3 with `--check` when there is a problem, or no agent runs, or a part of it hangs; else 0. */
export async function status(
  settings: StatusSettings,
  context: Pick<CommandContext, "log" | "stdout" | "terminal" | "clock">,
): Promise<ExitStatus> {
  const path = socketPath(settings.dataDirectory, settings.interfaceName);
  const asked = await fetchStatus(path, askTimeoutMs);
  const found =
    asked.kind === "status"
      ? asked.status
      : await readStatus(
          settings,
          asked.kind === "absent"
            ? { running: false, why: describeAbsence(settings, findPlaceHolders(), await formerIn(settings)) }
            : {
                ...(asked.forbidden ? { running: null } : holderIn(settings.dataDirectory)),
                why: [`the agent at socket ${quotePath(path)} cannot be asked: ${asked.reason}`],
              },
          { ...context, run: createRunCommand() },
        );
  context.stdout(
    settings.json
      ? `${JSON.stringify(found, undefined, 2)}\n`
      : renderStatus(found, { now: context.clock.wallTime(), color: context.terminal }),
  );
  const { running, unhealthy } = found.agent;
  const good =
    asked.kind === "status" && running === true && unhealthy.length === 0 && found.problems.length === 0;
  return settings.check && !good ? exitStatus.problems : exitStatus.ok;
}

/** Who listens there and gives no answer: an agent holds its data directory as long as it lives, whatever became of it. */
function holderIn(dataDirectory: string): Omit<Absence, "why"> {
  const found = findHolderOf(dataDirectory);
  return found === undefined
    ? { running: null }
    : { running: true, pid: found.pid, unhealthy: [describeSilence(found)] };
}

/** Of which interface the files there are, when they are of another one. */
async function formerIn({ dataDirectory, interfaceName }: PlaceSettings): Promise<string | undefined> {
  // What keeps the directory from being looked into is told by whoever reads from it.
  return await findFormerFiles(dataDirectory, interfaceName).catch(() => undefined);
}

/** Where an agent was looked for, of which interface its files are, and who runs in this network namespace elsewhere. */
export function describeAbsence(
  { dataDirectory, interfaceName }: PlaceSettings,
  others: readonly PlaceHolder[],
  former?: string,
): readonly string[] {
  const place = `data directory ${quotePath(dataDirectory)} with interface ${quote(interfaceName)}`;
  const ofFormer =
    former === undefined || others.some((other) => other.dataDirectory === dataDirectory)
      ? []
      : [
          `its files are of interface ${quote(former)}; ask with: ${placeCommand("status", { dataDirectory, interfaceName: former })}`,
        ];
  return [
    `no agent runs on ${place}`,
    ...ofFormer,
    ...others.map((other) => {
      const held = `${other.holder} holds interface ${quote(other.interfaceName)} in this network namespace`;
      if (other.dataDirectory === undefined) return `${held}; ask it with its own --data-dir`;
      if (other.dataDirectory === dataDirectory && other.interfaceName === interfaceName) {
        return `${held}, and does not answer yet`;
      }
      return `${held}; ask it with: ${placeCommand("status", { ...other, dataDirectory: other.dataDirectory })}`;
    }),
  ];
}

/** How it was found out that no agent answers. */
export interface Absence {
  /** Null: an agent may run there. True: it does, and gives no answer. */
  readonly running: boolean | null;
  readonly pid?: number;
  readonly unhealthy?: readonly string[];
  readonly why: readonly string[];
}

/** The status without an agent. What cannot be read is a problem in it. */
export async function readStatus(
  place: PlaceSettings,
  { why, ...found }: Absence,
  { log, clock, run }: Pick<CommandContext, "log" | "clock"> & { readonly run: RunCommand },
): Promise<Status> {
  const { dataDirectory, interfaceName } = place;
  const user = ordinaryUser();
  const problems: Problem[] = [];
  const orProblem = async <T>(kind: Problem["kind"], read: Promise<T>): Promise<T | undefined> => {
    try {
      return await read;
    } catch (error) {
      if (!(error instanceof ClusternetError)) throw error;
      problems.push({ kind, message: describeInLine(error) });
      return undefined;
    }
  };
  const key = await orProblem("source-failed", readKeyFile(join(dataDirectory, keyFileName)));
  const ownKey = key?.key.publicKey;
  const last = await new MeshFile(join(dataDirectory, `${interfaceName}.conf`)).read(ownKey, lookOnly);
  // What another user may not read is said below, with all the rest of it.
  const stateFile = new StateFile(join(dataDirectory, `${interfaceName}.state`), await readBootId());
  const state = await stateFile.read(user === undefined ? log : silentLogger, lookOnly);
  const clusterNets = await findClusterNets(state, interfaceName, run);
  const ourKeys = keysOf(ownKey, last);
  const seen = await orProblem(
    "apply-failed",
    readHost({ run, interfaceName, networks: clusterNets, ourKeys }),
  );
  const foreign =
    seen === undefined
      ? undefined
      : foreignInterface({ interfaceName, ...(ownKey === undefined ? {} : { publicKey: ownKey }) }, seen, {
          ourKeys,
        });
  if (foreign !== undefined) problems.push(foreign);
  const ofInterface = foreign === undefined ? seen?.interface?.publicKey : undefined;
  const publicKey = ownKey ?? (last.kind === "mesh" ? last.publicKey : ofInterface);
  const built = meshOf(last, clusterNets, publicKey, seen);
  const credentials = credentialsIn(dataDirectory);
  // Without TLS, or with files elsewhere, nothing here names the node.
  const identity = existsSync(credentials.cert)
    ? await orProblem("source-failed", readCredentials(credentials))
    : undefined;
  problems.push(...(await openKeyProblems(credentials.key)));
  problems.push(...(await openDirectoryProblems([dataDirectory], Object.values(credentials))));
  problems.push(...(await unwritableProblems(dataDirectory)));
  problems.push(...(key?.problems ?? []), ...(last.kind === "none" ? [] : last.problems), ...built.problems);
  const shown = user === undefined ? problems : mergeDenied(problems, place, user);
  // One that names the user says enough.
  const unseen = seen === undefined && user !== undefined && shown === problems ? [whyUnseen(user)] : [];
  return buildStatus({
    version,
    agent: { ...found, notReady: [...why, ...unseen] },
    node: {
      ...(identity === undefined ? {} : { id: identity.nodeId }),
      ...(publicKey === undefined ? {} : { publicKey }),
    },
    curator: noCurator,
    ...(last.kind === "mesh" ? { source: "file", sourceAt: last.writtenAt } : {}),
    interfaceName,
    ...(seen?.interface === undefined ? {} : { interface: seen.interface }),
    isHostUnseen: seen === undefined,
    mesh: built.mesh,
    listenPort: portOf(last, state),
    problems: shown,
    now: clock.wallTime(),
  });
}

/** WireGuard shows an interface to root alone, and `wg` does not say that this is what is missing. */
function whyUnseen(user: number): string {
  return `the interface cannot be looked at as user ${user}: run this as root`;
}

/** Key, file and interface are root's each for itself, but to another user it is one thing that is missing. */
function mergeDenied(problems: readonly Problem[], place: PlaceSettings, user: number): readonly Problem[] {
  const others = problems.filter(({ message }) => !/\bEACCES\b|permission denied/i.test(message));
  if (others.length === problems.length) return problems;
  const message =
    `Cannot look at this node as user ${user}: its files and its interface are for root; ` +
    `hint: ${runAsRoot("status", place)}`;
  return [{ kind: "source-failed", message }, ...others];
}

/**
 * A disk that cannot be written is not to be seen in what is on it, which is then older than the interface: an agent
 * that was killed can say no more that this is why.
 */
async function unwritableProblems(dataDirectory: string): Promise<readonly Problem[]> {
  let reason: string | undefined;
  try {
    await access(dataDirectory, constants.W_OK);
    const { blocks, bfree } = await statfs(dataDirectory);
    if (blocks > 0 && bfree === 0) reason = "ENOSPC: no space left on device";
  } catch (error) {
    // Without a directory there is nothing to write, and of rights others tell.
    if (isSystemError(error, "EROFS")) reason = systemReason(error);
  }
  if (reason === undefined) return [];
  const message =
    `Cannot write in data directory ${quotePath(dataDirectory)}: ${reason}; ` +
    "hint: what is here of its files may be older than the interface";
  return [{ kind: "file-unwritable", message }];
}

function keysOf(ownKey: PublicKey | undefined, last: LastMesh): ReadonlySet<PublicKey> {
  const ofFile = last.kind === "none" ? undefined : last.publicKey;
  return new Set([ownKey, ofFile].filter((key) => key !== undefined));
}

/** The file's nodes judged as an agent would at its start. */
function meshOf(
  last: LastMesh,
  clusterNets: readonly Prefix[],
  ownPublicKey: PublicKey | undefined,
  seen: SeenHost | undefined,
): { readonly mesh: Mesh; readonly problems: readonly Problem[] } {
  if (last.kind !== "mesh" || ownPublicKey === undefined) return { mesh: { peers: [] }, problems: [] };
  const rules = { clusterNets, ownPublicKey, hostAddresses: seen?.addresses ?? new Set<string>() };
  const claims = last.nodes.map((node) => judgeNode(node, rules));
  return buildMesh({ claims, ownPrefixes: [], incumbents: noIncumbents });
}

function portOf(last: LastMesh, state: AgentState): number {
  return last.kind === "mesh" ? last.listenPort : (state.listenPort ?? defaultListenPort);
}
