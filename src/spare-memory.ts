/**
 * Gives memory back that the start and each large change of the mesh have left.
 *
 * A picture of 10,000 nodes makes some 60 MB of garbage on its way to the interface. The collector lets its heap grow for
 * that, and an agent that rests afterwards gives it no reason to shrink: measured for minutes. So it is told once, when
 * nothing has changed for a while; it takes about 50 ms then. The start leaves 4 MB, of code that runs once, also where
 * there are no nodes; and some 45 MB of the executable stay mapped, of which an agent that rests uses a part.
 */
import type { Clock, Watched } from "./async.ts";
import type { Mesh } from "./core/mesh.ts";
import { diffMeshes } from "./core/mesh-changes.ts";
import { giveBackProgramPages } from "./host/program-pages.ts";
import type { Logger } from "./log.ts";

/** So many peers that came, went or changed leave something worth the while. */
export const manyPeers = 1_000;
/** Nothing has changed for this long, and at most twice as long. */
export const restMs = 3_000;

export interface SpareMemoryParts {
  readonly state: Watched<{ readonly mesh: Mesh }>;
  readonly clock: Clock;
  /** Gives the memory back. */
  readonly collect: () => void;
}

/** Until `signal` aborts. */
export async function spareMemory(
  { state, clock, collect }: SpareMemoryParts,
  signal: AbortSignal,
): Promise<void> {
  let before: Mesh = { peers: [] };
  // What the start has left is worth the while, however few peers there are.
  let changed = manyPeers;
  for await (const { mesh } of state.watch(signal)) {
    changed += diffMeshes(before, mesh).length;
    before = mesh;
    if (changed < manyPeers) continue;
    await clock.sleep(restMs, signal);
    // Whatever came meanwhile is looked at next.
    if (signal.aborted || diffMeshes(mesh, state.get().mesh).length > 0) continue;
    collect();
    changed = 0;
  }
}

/** For the runtime that this program is compiled with. What the kernel refuses is logged at debug and harms nothing. */
export function giveMemoryBack(log: Logger): void {
  Bun.gc(true);
  Bun.shrink();
  for (const sentence of giveBackProgramPages()) log.debug(sentence);
}
