/**
 * What a run would do now, without doing any of it (`--dry-run`).
 */
import type { Watched } from "./async.ts";
import { keyPathOf, pathOf, type Agent } from "./agent.ts";
import { renderStep } from "./core/host-commands.ts";
import { announcedEndpoint } from "./core/host-state.ts";
import { privateKeyFromBytes, secretForms, type PublicKey } from "./core/key.ts";
import type { NodeId } from "./core/node.ts";
import type { Problem } from "./core/problem.ts";
import { renderWgConfig } from "./core/wg-config.ts";
import type { ClusternetError } from "./errors.ts";
import { portInUse } from "./host/apply.ts";
import type { ApplyResult } from "./host/host.ts";
import { createRunCommand, runUntil } from "./host/command.ts";
import { readKeyFile } from "./host/key-file.ts";
import { findHeldNetworks } from "./host/lock.ts";
import { MeshFile } from "./host/mesh-file.ts";
import { findFormerFiles } from "./host/state-file.ts";
import { isUdpPortHeld } from "./host/udp-ports.ts";
import { guessImplementation } from "./host/wireguard-go.ts";
import { interfaceTaken, notAllAnnounced, pictureMissing, portTaken, tooLate } from "./once-errors.ts";
import { readOwn, sourceIsSilent, type SourceState } from "./own.ts";
import { openKeyProblems } from "./trust/credentials.ts";
import {
  createAgentHost,
  createUnderlay,
  learnKeyOf,
  recall,
  unlessItMayPass,
  wire,
  type Wired,
} from "./wiring.ts";

/** What a run would do (`--dry-run`). */
export interface Preview {
  /** The file of the mesh, the private key hidden. */
  readonly text: string;
  /** The commands of the steps, as they would be typed. */
  readonly commands: readonly string[];
  readonly announced: PreviewedAnnouncement;
  readonly problems: readonly Problem[];
  /**
   * What a run would end with, as far as it can be told without asking the Curator: 75 for an interface of somebody else,
   * 69 for the port, 3 for a prefix.
   */
  readonly failure?: ClusternetError;
}

/** What the Curator would be told, and through it all other nodes. */
export interface PreviewedAnnouncement {
  /** Absent: there is no key yet, and a run would make one. */
  readonly publicKey?: PublicKey;
  /** HOST:PORT at which other nodes would reach this one. Absent: no external address is known. */
  readonly endpoint?: string;
  /** In the order in which they would be announced. */
  readonly prefixes: readonly string[];
  readonly reportStatus: "auto" | "on" | "off";
}

/**
 * Waits for a full picture, and the source of the pod prefixes, and compares. Takes no place, makes no key (one that is
 * missing is made up for the comparison), so it works beside a running agent. Throws ClusternetError with exit 75 when
 * `timeoutMs` run out.
 */
export async function previewRun(agent: Agent, timeoutMs: number, signal: AbortSignal): Promise<Preview> {
  const { self, dataDirectory, interfaceName, wireguard, curator, log } = agent;
  const run = runUntil(createRunCommand(), signal);
  const found = await readKeyFile(keyPathOf(agent));
  const key = found?.key ?? privateKeyFromBytes(crypto.getRandomValues(new Uint8Array(32)));
  for (const form of secretForms(key)) log.redact(form);
  // A run would give these files its own name first.
  const former = await findFormerFiles(dataDirectory, interfaceName);
  const file = new MeshFile(pathOf(agent, "conf", former));
  const last = await file.read(key.publicKey, { closeToOthers: false });
  const memory = await recall(agent, { write: false, former });
  const ourKeys = new Set([key.publicKey]);
  learnKeyOf(last, ourKeys);
  // The agent that runs here has ended when a run begins: what it routes is nobody's then.
  const heldNetworks = (): ReadonlySet<string> => findHeldNetworks(agent);
  const host = createAgentHost(agent, run, { ourKeys, memory, heldNetworks });
  const seen = await unlessItMayPass(agent, host.read());
  const underlay = createUnderlay(agent, run);
  await underlay.read();
  const wired = wire(agent, { key, host, file, last, memory, seen, underlay });
  const { pull, own, ownSettings, sources } = wired;
  await Promise.all([
    hearMesh(agent, wired, timeoutMs, signal),
    hearSource(agent, sources.podNetworkState, timeoutMs, signal),
  ]);
  own.set(readOwn(ownSettings, sources));
  const { wanted, problems } = pull.wanted();
  // As a run would: it writes the file first.
  const planned = await host.plan({ ...wanted, configWritten: true });
  const { listenPort, keepaliveSeconds } = wanted;
  const keepalive = keepaliveSeconds === undefined ? {} : { keepaliveSeconds };
  const implementation =
    planned.seen?.interface?.implementation ?? (await guessImplementation({ wireguard }));
  const context = {
    keyFile: keyPathOf(agent),
    configFile: pathOf(agent, "conf"),
    implementation,
    plusAllowedIps: false,
  };
  const { claim, externalAddress } = own.get();
  const endpoint =
    externalAddress === undefined ? undefined : announcedEndpoint({ address: externalAddress }, listenPort);
  const reported = [
    ...(last.kind === "none" ? [] : last.problems),
    ...(curator.credentials === undefined ? [] : await openKeyProblems(curator.credentials.key)),
    ...own.get().problems,
    ...problems,
    ...planned.problems,
    ...(await heldPort(planned, { interfaceName, listenPort })),
  ];
  const failure = failureOf(reported, self);
  return {
    text: renderWgConfig({ listenPort, mesh: { peers: wanted.peers }, ...keepalive }, undefined),
    commands: planned.done.map((step) => renderStep(step, context)),
    announced: {
      prefixes: claim.announcement.prefixes.map(({ text }) => text),
      reportStatus: agent.reportStatus,
      ...(endpoint === undefined ? {} : { endpoint }),
      ...(found === undefined ? {} : { publicKey: key.publicKey }),
    },
    problems: reported,
    ...(failure === undefined ? {} : { failure }),
  };
}

/**
 * The port, when a run would find it held by others: not where the interface has it, nor where a link is taken away or
 * named back first, which may.
 */
async function heldPort(
  { seen, done, problems }: ApplyResult,
  { interfaceName, listenPort }: { readonly interfaceName: string; readonly listenPort: number },
): Promise<readonly Problem[]> {
  const link = seen?.interface;
  const hasPort = link?.up === true && link.listenPort === listenPort;
  const movesLink = done.some(({ kind }) => kind === "delete-link" || kind === "rename-link");
  // It stops at somebody else's interface, and never comes to the port.
  const comesToPort = seen !== undefined && !problems.some(({ kind }) => kind === "interface-foreign");
  return comesToPort && !hasPort && !movesLink && (await isUdpPortHeld(listenPort))
    ? [portInUse(interfaceName, listenPort)]
    : [];
}

function failureOf(problems: readonly Problem[], self: NodeId): ClusternetError | undefined {
  return (
    interfaceTaken(problems) ??
    portTaken(problems) ??
    notAllAnnounced("Not all of this node would be announced", { problems, self })
  );
}

/** Waits until all that the Curator knows has been heard. Throws ClusternetError with exit 75 when `timeoutMs` run out first. */
async function hearMesh(
  { self, curator, clock }: Agent,
  { pull, tracker }: Wired,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<void> {
  await pull.look(signal);
  const stop = new AbortController();
  const until = AbortSignal.any([signal, stop.signal]);
  const listen = async (): Promise<void> => {
    for await (const event of curator.follow(until)) {
      tracker.fold(event, clock.nowMs());
      if (tracker.heardOut) stop.abort();
    }
  };
  const limit = async (): Promise<{
    readonly problems: readonly Problem[];
    readonly missing: readonly string[];
  }> => {
    const endMs = clock.nowMs() + timeoutMs;
    while (!until.aborted && clock.nowMs() < endMs) {
      await clock.sleep(
        Math.min(endMs, tracker.settleAtMs ?? Infinity, clock.nowMs() + 100) - clock.nowMs(),
        until,
      );
      tracker.settle(clock.nowMs());
      if (tracker.heardOut) break;
    }
    // Taken before the follower ends: it takes its problems with it.
    const last = { problems: curator.problems.get(), missing: [pictureMissing(curator.state.get())] };
    stop.abort();
    return last;
  };
  const [last] = await Promise.all([limit(), listen()]);
  if (tracker.heardOut || signal.aborted) return;
  throw tooLate("see the whole mesh", { timeoutMs, ...last, self });
}

/** Waits until the source has said something. Throws ClusternetError with exit 75 when `timeoutMs` run out first. */
async function hearSource(
  { self, clock }: Agent,
  state: Watched<SourceState>,
  timeoutMs: number,
  signal: AbortSignal,
): Promise<void> {
  const heard = new AbortController();
  const until = AbortSignal.any([signal, heard.signal]);
  const late = clock.sleep(timeoutMs, until).then(() => heard.abort());
  for await (const { answered } of state.watch(until)) if (answered) heard.abort();
  await late;
  const { answered, problems } = state.get();
  if (answered || signal.aborted) return;
  throw tooLate("know this node's pod prefixes", { timeoutMs, missing: [sourceIsSilent], problems, self });
}
