/**
 * `clusternet run`: the agent, until it is asked to stop; with `--once` until the mesh holds; with `--dry-run` only what
 * would be done. A thin user of `Service`.
 */
import { hostname } from "node:os";
import { fasterClock, Value } from "../async.ts";
import type { NodeId } from "../core/node.ts";
import { quote, quotePath } from "../core/problem.ts";
import { createCurator, type InsecureCurators, type TrustedCurators } from "../curator/client.ts";
import { exitStatus, SettingsError, type ExitStatus } from "../errors.ts";
import { kubernetesPodNetwork, type KubernetesPodNetwork } from "../kubernetes/node-source.ts";
import type { RedactingLogger } from "../log.ts";
import type { NetworkStatus } from "../own.ts";
import type { Preview } from "../preview.ts";
import { Prefixes } from "../prefixes.ts";
import { Service } from "../service.ts";
import type { Identity, RunSettings } from "../settings.ts";
import { readCredentials, redactKey } from "../trust/credentials.ts";
import type { CommandContext } from "./context.ts";

/** Throws ClusternetError for what keeps the agent from starting, and with `--once` from finishing. */
export async function run(settings: RunSettings, context: CommandContext): Promise<ExitStatus> {
  const { log, signal } = context;
  const addresses = settings.curators.map(({ text }) => text);
  const { nodeId, trust } = await identify(settings.identity, log);
  for (const { text } of settings.unusableCurators) {
    log.warn("A Curator inside ClusterNet is left out: the way to it would lead through the mesh", {
      curator: text,
    });
  }
  const { externalAddress, keepaliveSeconds, clockSpeed } = settings;
  const clock = clockSpeed === 1 ? context.clock : fasterClock(context.clock, clockSpeed);
  if (clockSpeed !== 1) {
    log.warn(
      "Every wait is shorter than it should be, which is for tests only: unset CLUSTERNET_CLOCK_SPEED",
      {
        times: clockSpeed,
      },
    );
  }
  const pods = await podSourceOf(settings, { log, clock });
  const service = new Service({
    curator: createCurator({
      addresses,
      nodeId,
      ...trust,
      clusterNets: settings.clusterNets,
      loopbackOnly: settings.identity.kind === "insecure" && !settings.identity.anywhere,
      log,
      clock,
    }),
    nodeId,
    clusterNet: settings.clusterNets,
    dataDirectory: settings.dataDirectory,
    localKubernetesPodNetwork: pods.prefixes,
    network:
      externalAddress === "auto"
        ? "auto"
        : new Value<NetworkStatus | undefined>({ externalAddress: externalAddress.text }),
    interfaceName: settings.interfaceName,
    listenPort: settings.listenPort,
    mtu: settings.mtu,
    wireguard: settings.wireguard,
    resyncSeconds: settings.resyncSeconds,
    reportStatus: settings.reportStatus,
    curatorAddresses: addresses,
    log,
    clock,
    ...(pods.state === undefined ? {} : { podNetworkState: pods.state }),
    ...(keepaliveSeconds === undefined ? {} : { keepaliveSeconds }),
  });
  // Whichever ends first, by its work or by a bug, ends the other: an agent must not live on half.
  const stop = new AbortController();
  const until = AbortSignal.any([signal, stop.signal]);
  const loops = [runService(service, settings, { ...context, signal: until }), pods.run?.(until)];
  const ends = await Promise.allSettled(
    loops.filter((loop) => loop !== undefined).map((loop) => loop.finally(() => stop.abort())),
  );
  const failed = ends.find((end) => end.status === "rejected");
  if (failed !== undefined) throw failed.reason;
  return exitStatus.ok;
}

async function runService(
  service: Service,
  { once }: RunSettings,
  { log, signal, stdout }: CommandContext,
): Promise<void> {
  if (once === undefined) {
    await service.run(signal);
    log.info("Agent stops; the mesh stays up");
  } else if (once.dryRun) {
    const preview = await service.preview(once.timeoutSeconds * 1000, signal);
    stdout(renderPreview(preview));
    if (preview.failure !== undefined) throw preview.failure;
  } else {
    await service.runOnce(once.timeoutSeconds * 1000, signal);
  }
}

/** Where pod prefixes come from: the flags, and Kubernetes when it is asked. Throws SettingsError. */
async function podSourceOf(
  { podPrefixes, kubernetes }: RunSettings,
  { log, clock }: Pick<CommandContext, "log" | "clock">,
): Promise<Pick<KubernetesPodNetwork, "prefixes"> & Partial<KubernetesPodNetwork>> {
  const fixed = new Prefixes(podPrefixes);
  if (kubernetes === undefined) return { prefixes: new Value(fixed) };
  const { kubeconfig, node = hostname().toLowerCase() } = kubernetes;
  return await kubernetesPodNetwork({ kubeconfig, node, fixed, log, clock });
}

/** Who this node is, and by what it knows its Curators. Throws SettingsError for credentials that cannot be used. */
async function identify(
  identity: Identity,
  log: RedactingLogger,
): Promise<{ readonly nodeId: NodeId; readonly trust: InsecureCurators | TrustedCurators }> {
  if (identity.kind === "insecure") {
    log.warn(
      "No TLS: whoever reaches the Curator's port, or can answer in its place, decides about this mesh",
    );
    return { nodeId: identity.nodeId, trust: { insecure: true } };
  }
  const { files, nodeId, curatorIds } = identity;
  const own = await readCredentials(files);
  redactKey(own, log);
  if (nodeId !== undefined && nodeId !== own.nodeId) {
    throw new SettingsError(
      `Cannot use --node-id ${quote(nodeId)}: the certificate ${quotePath(files.cert)} is that of node ${quote(own.nodeId)}`,
      { hint: "Leave --node-id out: the certificate names the node" },
    );
  }
  return {
    nodeId: own.nodeId,
    trust: { credentials: files, ...(curatorIds === undefined ? {} : { curatorIds }) },
  };
}

const reporting = {
  on: "reported at start and at each change",
  auto: "reported when the Curator has missed one for 10 s (--report-status on: at once)",
  off: "not reported: something else must report this node's",
} as const;

/**
 * The file, then the commands, then what the Curator would be told, then what is reported; each part under a line that
 * `wg` and a shell take as a comment.
 */
function renderPreview({ text, commands, announced, problems }: Preview): string {
  const shown = commands.length === 0 ? ["# nothing: this host is as wanted"] : commands;
  const { publicKey = "made by the first run", endpoint, prefixes, reportStatus } = announced;
  const reports = problems.map(({ kind, message }) => `# ${kind}: ${message}`);
  return [
    text.trimEnd(),
    "",
    "# Commands",
    ...shown,
    "",
    "# Announcement",
    `# public key: ${publicKey}`,
    `# endpoint: ${endpoint ?? "none, since no external address is known"}`,
    `# prefixes: ${prefixes.join(", ") || "none"}`,
    `# status: ${reporting[reportStatus]}`,
    ...(reports.length === 0 ? [] : ["", "# Problems", ...reports]),
    "",
  ].join("\n");
}
