/**
 * `clusternet status`: the mesh as this node sees it, asked of the running agent.
 *
 * Without an agent, or with one that does not answer in time, it is read from the files and the interface; the
 * status then says that no agent runs. Changes nothing, and makes no key.
 */
import { join } from "node:path";
import { defaultListenPort } from "../checks.ts";
import { judgeNode } from "../core/claim.ts";
import { foreignInterface } from "../core/host-plan.ts";
import type { SeenHost } from "../core/host-state.ts";
import type { PublicKey } from "../core/key.ts";
import { type Mesh, buildMesh, noIncumbents } from "../core/mesh.ts";
import type { Prefix } from "../core/prefix.ts";
import { shellCommand } from "../core/printable.ts";
import { quote, quotePath, type Problem } from "../core/problem.ts";
import { ClusternetError, type ExitStatus, describeInLine, exitStatus } from "../errors.ts";
import { createRunCommand, type RunCommand } from "../host/command.ts";
import { openDirectoryProblems } from "../host/directory-mode.ts";
import { socketPath } from "../host/files.ts";
import { keyFileName, readKeyFile } from "../host/key-file.ts";
import { type PlaceHolder, findPlaceHolders } from "../host/lock.ts";
import { type LastMesh, MeshFile } from "../host/mesh-file.ts";
import { readHost } from "../host/read.ts";
import { type AgentState, StateFile, readBootId } from "../host/state-file.ts";
import { defaultPlace, type PlaceSettings, type StatusSettings } from "../settings.ts";
import { type Status, buildStatus, noCurator } from "../status.ts";
import { fetchStatus } from "../status-socket.ts";
import { renderStatus } from "../status-text.ts";
import { credentialNames, credentialsDirectory } from "../trust/credential-files.ts";
import { openKeyProblems } from "../trust/credentials.ts";
import { version } from "../version.ts";
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
            ? describeAbsence(settings, findPlaceHolders())
            : [`the agent at socket ${quotePath(path)} cannot be asked: ${asked.reason}`],
          { ...context, run: createRunCommand() },
        );
  context.stdout(
    settings.json
      ? `${JSON.stringify(found, undefined, 2)}\n`
      : renderStatus(found, { now: context.clock.wallTime(), color: context.terminal }),
  );
  const { running, unhealthy } = found.agent;
  const good = running && unhealthy.length === 0 && found.problems.length === 0;
  return settings.check && !good ? exitStatus.problems : exitStatus.ok;
}

/** Where an agent was looked for, and who runs in this network namespace elsewhere. */
export function describeAbsence(
  { dataDirectory, interfaceName }: PlaceSettings,
  others: readonly PlaceHolder[],
): readonly string[] {
  const place = `data directory ${quotePath(dataDirectory)} with interface ${quote(interfaceName)}`;
  return [
    `no agent runs on ${place}`,
    ...others.map((other) => {
      const held = `${other.holder} holds interface ${quote(other.interfaceName)} in this network namespace`;
      if (other.dataDirectory === undefined) return `${held}; ask it with its own --data-dir`;
      if (other.dataDirectory === dataDirectory && other.interfaceName === interfaceName) {
        return `${held}, and does not answer yet`;
      }
      return `${held}; ask it with: ${statusCommand({ ...other, dataDirectory: other.dataDirectory })}`;
    }),
  ];
}

function statusCommand({ dataDirectory, interfaceName }: PlaceSettings): string {
  return shellCommand([
    "clusternet",
    "status",
    ...(dataDirectory === defaultPlace.dataDirectory ? [] : ["--data-dir", dataDirectory]),
    ...(interfaceName === defaultPlace.interfaceName ? [] : ["--interface", interfaceName]),
  ]);
}

/** The status without an agent, whose absence `why` explains. What cannot be read is a problem in it. */
export async function readStatus(
  place: PlaceSettings,
  why: readonly string[],
  { log, clock, run }: Pick<CommandContext, "log" | "clock"> & { readonly run: RunCommand },
): Promise<Status> {
  const { dataDirectory, interfaceName } = place;
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
  const state = await new StateFile(join(dataDirectory, `${interfaceName}.state`), await readBootId()).read(
    log,
    lookOnly,
  );
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
  const credentials = join(dataDirectory, credentialsDirectory);
  problems.push(...(await openKeyProblems(join(credentials, credentialNames.key))));
  const files = Object.values(credentialNames).map((name) => join(credentials, name));
  problems.push(...(await openDirectoryProblems([dataDirectory], files)));
  problems.push(...(key?.problems ?? []), ...(last.kind === "none" ? [] : last.problems), ...built.problems);
  return buildStatus({
    version,
    agent: { running: false, notReady: [...why, ...(seen === undefined ? whyUnseen() : [])] },
    node: { ...(publicKey === undefined ? {} : { publicKey }), announced: [] },
    curator: noCurator,
    ...(last.kind === "mesh" ? { source: "file", sourceAt: last.writtenAt } : {}),
    interfaceName,
    ...(seen?.interface === undefined ? {} : { interface: seen.interface }),
    isHostUnseen: seen === undefined,
    mesh: built.mesh,
    listenPort: portOf(last, state),
    problems,
    now: clock.wallTime(),
  });
}

/** WireGuard shows an interface to root alone, and `wg` does not say that this is what is missing. */
function whyUnseen(): readonly string[] {
  const user = process.geteuid?.();
  return user === undefined || user === 0
    ? []
    : [`the interface cannot be looked at as user ${user}: run this as root`];
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
