/**
 * `clusternet run`: the agent, until it is asked to stop; with `--once` until the mesh holds; with `--dry-run` only what
 * would be done. A thin user of `Service`.
 */
import { Value } from "../async.ts";
import { renderStep } from "../core/host-commands.ts";
import { createCurator } from "../curator/client.ts";
import { exitStatus, type ExitStatus } from "../errors.ts";
import type { NetworkStatus } from "../own.ts";
import { Prefixes } from "../prefixes.ts";
import { Service, type Preview } from "../service.ts";
import type { RunSettings } from "../settings.ts";
import type { CommandContext } from "./context.ts";

/** Throws ClusternetError for what keeps the agent from starting, and with `--once` from finishing. */
export async function run(settings: RunSettings, context: CommandContext): Promise<ExitStatus> {
  const { log, signal, clock, stdout } = context;
  const addresses = settings.curators.map(({ text }) => text);
  log.warn("No TLS: whoever reaches the Curator's port, or can answer in its place, decides about this mesh");
  for (const { text } of settings.unusableCurators) {
    log.warn("A Curator inside ClusterNet is left out: the way to it would lead through the mesh", {
      curator: text,
    });
  }
  const { externalAddress, keepaliveSeconds, once } = settings;
  const service = new Service({
    curator: createCurator({ addresses, nodeId: settings.nodeId, insecure: settings.insecure, log, clock }),
    nodeId: settings.nodeId,
    clusterNet: settings.clusterNets,
    dataDirectory: settings.dataDirectory,
    localKubernetesPodNetwork: new Value<Prefixes | undefined>(new Prefixes(settings.podPrefixes)),
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
    ...(keepaliveSeconds === undefined ? {} : { keepaliveSeconds }),
  });
  if (once === undefined) {
    await service.run(signal);
    log.info("Agent stops; the mesh stays up");
  } else if (once.dryRun) {
    stdout(renderPreview(await service.preview(once.timeoutSeconds * 1000, signal)));
  } else {
    await service.runOnce(once.timeoutSeconds * 1000, signal);
  }
  return exitStatus.ok;
}

/** The file, then the commands, then what is reported; each part under a line that `wg` and a shell take as a comment. */
function renderPreview({ text, steps, problems }: Preview): string {
  const commands =
    steps.length === 0 ? ["# nothing: this host is as wanted"] : steps.map((step) => renderStep(step));
  const reports = problems.map(({ kind, message }) => `# ${kind}: ${message}`);
  return [
    text.trimEnd(),
    "",
    "# Commands",
    ...commands,
    ...(reports.length === 0 ? [] : ["", "# Problems", ...reports]),
    "",
  ].join("\n");
}
