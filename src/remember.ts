/**
 * What a running agent learns that is a help for the next start, kept in the state file as it changes.
 *
 * What cannot be written now is written by housekeeping as soon as it can be; until then only the help is missing.
 */
import type { Watched } from "./async.ts";
import type { Agent } from "./agent.ts";
import { describeInLine } from "./errors.ts";
import type { AgentMemory } from "./host/state-file.ts";
import { podNetworkToRemember, type OwnSources } from "./own.ts";
import type { PullState } from "./pull.ts";

/** Curators that the cluster names (C2), until `signal` aborts. They are tried from here on, too. */
export async function rememberCurators(
  { curator, log }: Pick<Agent, "curator" | "log">,
  { state, memory }: { readonly state: Watched<PullState>; readonly memory: AgentMemory },
  signal: AbortSignal,
): Promise<void> {
  let learned: PullState["curators"] = [];
  for await (const { curators } of state.watch(signal)) {
    if (curators === learned || curators.length === 0) continue;
    learned = curators;
    curator.learn(curators);
    try {
      await memory.learn(curators);
      log.debug("Learned the Curators of the cluster", { count: curators.length });
    } catch (error) {
      log.warn("Cannot remember the Curators of the cluster", { error: describeInLine(error) });
    }
  }
}

/**
 * The pod prefixes that a source has given, until `signal` aborts: for a restart before it gives them again. A source
 * that always knows needs no memory.
 */
export async function rememberPodPrefixes(
  { podNetworkState: state, log }: Pick<Agent, "podNetworkState" | "log">,
  { sources, memory }: { readonly sources: OwnSources; readonly memory: AgentMemory },
  signal: AbortSignal,
): Promise<void> {
  const { podNetwork, podNetworkState } = sources;
  const remember = async (): Promise<void> => {
    if (!podNetworkState.get().answered) return;
    const next = state === undefined ? undefined : podNetworkToRemember(podNetwork.get(), state.get());
    if (Bun.deepEquals(next, memory.get().podNetwork)) return;
    try {
      await memory.rememberPodNetwork(next);
    } catch (error) {
      log.warn("Cannot remember the pod prefixes of this node", { error: describeInLine(error) });
    }
  };
  const follow = async (source: Watched<unknown>): Promise<void> => {
    for await (const _changed of source.watch(signal)) await remember();
  };
  await Promise.all([follow(podNetwork), follow(podNetworkState)]);
}
