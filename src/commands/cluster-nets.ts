/**
 * Which ClusterNets to look at without an agent: for `down`, which takes their routes and guards away, and for
 * `status`, which judges by them what the last file says.
 *
 * The state file says it. Where that is lost or damaged, the routes of ours on the interface do, and without one
 * it is the network of nearly everybody. What is found decides only where to look: nothing of another protocol
 * than ours is taken away.
 */
import { parsePrefix, type Prefix } from "../core/prefix.ts";
import type { RunCommand } from "../host/command.ts";
import { readRoutedNetworks } from "../host/read.ts";
import type { AgentState } from "../host/state-file.ts";
import { defaultClusterNet } from "../settings.ts";

/** At least one. Throws nothing for what cannot be read: whoever looks at the host next says so. */
export async function findClusterNets(
  { clusterNets }: Pick<AgentState, "clusterNets">,
  interfaceName: string,
  run: RunCommand,
): Promise<readonly Prefix[]> {
  if (clusterNets.length > 0) return clusterNets;
  const routed = await readRoutedNetworks(run, interfaceName);
  return routed.length > 0 ? routed : [parsePrefix(defaultClusterNet)];
}
