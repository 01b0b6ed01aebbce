/**
 * The gRPC services `Curator` and `CuratorLocal`: who calls, which call, and the answer in gRPC's terms.
 *
 * Everything that is decided, is decided in registry.ts and admission.ts. What is refused is logged by caller-log.ts.
 */
import { Status } from "nice-grpc-common";
import { ServerError, type CallContext, type ServiceImplementation } from "nice-grpc";
import { aborted } from "../async.ts";
import type { NodeId } from "../core/node.ts";
import { quote } from "../core/problem.ts";
import type { byteCuratorDefinition } from "../curator/event-bytes.ts";
import type { CuratorLocalDefinition, GetCurrentLeaderResponse, WatchRequest } from "../gen/curator.ts";
import type { Logger } from "../log.ts";
import { curatorNodeId, type IdentifyCaller } from "./caller.ts";
import { RefusalLog } from "./caller-log.ts";
import type { Refusal } from "./refusal.ts";
import type { Registry } from "./registry.ts";

/**
 * Streams of one caller. An agent has one, and two while it goes from one to the next; what a host that is gone has
 * left is found by keepalive within half a minute.
 */
export const maxWatchesOfCaller = 16;

export interface ServiceSettings {
  readonly registry: Registry;
  readonly identify: IdentifyCaller;
  readonly log: Logger;
  /** What GetCurrentLeader answers. */
  readonly leader: () => GetCurrentLeaderResponse;
  /** Aborts when the server stops. */
  readonly stopping: AbortSignal;
}

/** The service for nodes. Events come encoded from the fan-out, once for all watchers. */
export function curatorService(
  settings: ServiceSettings,
): ServiceImplementation<typeof byteCuratorDefinition> {
  const { registry, identify, log } = settings;
  const refusals = new RefusalLog(registry.callerLog);

  const callerOf = (context: CallContext): NodeId => {
    const caller = identify(context);
    if (typeof caller === "string") return caller;
    // Without its port, which is another one at each try.
    refusals.add({ address: context.peer.replace(/:\d+$/, "") }, "call", caller);
    throw serverError(caller);
  };
  const answer = (caller: NodeId, call: string, refusal: Refusal | undefined): Record<string, never> => {
    if (refusal === undefined) {
      refusals.clear(caller, call);
      return {};
    }
    refusals.add(caller, call, refusal);
    throw serverError(refusal);
  };

  return {
    async updateNodeStatus(request, context) {
      const caller = callerOf(context);
      return answer(caller, "UpdateNodeStatus", await registry.reportStatus(caller, request));
    },

    async updateNodeClusterNetworking(request, context) {
      const caller = callerOf(context);
      const refusal = await registry.announce(caller, request.clusternet);
      return answer(caller, "UpdateNodeClusterNetworking", refusal);
    },

    async *watch(request, context) {
      const caller = callerOf(context);
      const only = watchedNode(request);
      if (typeof only === "object") throw serverError(only);
      if (registry.standingOf(caller).kind === "removed") {
        answer(caller, "Watch", registry.removedRefusal(caller));
      }
      if (registry.fanOut.watchersOf(caller) >= maxWatchesOfCaller) {
        answer(caller, "Watch", {
          code: Status.RESOURCE_EXHAUSTED,
          message: `Cannot open one more Watch stream: node ${quote(caller)} has ${maxWatchesOfCaller}, expected an agent to close those that it no longer reads`,
        });
      }
      refusals.clear(caller, "Watch");
      const watcher = registry.fanOut.open(caller, only);
      log.debug("Watch stream opened", { node: caller, watchers: registry.fanOut.watchers });
      try {
        // Here and not in a generator of its own: each event would pass through that as well, for every watcher.
        while (!context.signal.aborted) {
          const event = watcher.next();
          if (event === undefined) await watcher.changed(context.signal);
          else if (event instanceof Uint8Array) yield event;
          else throw serverError(event);
        }
      } finally {
        registry.fanOut.close(watcher);
        log.debug("Watch stream closed", { node: caller, watchers: registry.fanOut.watchers });
      }
    },
  };
}

/** The service for everybody: this Curator is alone, so it leads. */
export function curatorLocalService({
  leader,
  stopping,
}: ServiceSettings): ServiceImplementation<typeof CuratorLocalDefinition> {
  return {
    async *getCurrentLeader(_request, context) {
      yield leader();
      await aborted(AbortSignal.any([stopping, context.signal]));
      if (stopping.aborted)
        throw new ServerError(Status.UNAVAILABLE, "Cannot go on: this Curator is stopping");
    },
  };
}

/** The one node to watch, undefined for all, or why not. */
function watchedNode({ kind }: WatchRequest): NodeId | undefined | Refusal {
  switch (kind?.$case) {
    case "nodesInCluster":
      return undefined;
    case "nodeInCluster":
      return curatorNodeId(kind.nodeInCluster.nodeId);
    case undefined:
      return {
        code: Status.UNIMPLEMENTED,
        message: "Cannot watch: the request says neither one node nor all",
      };
  }
}

function serverError({ code, message }: Refusal): ServerError {
  return new ServerError(code, message);
}
