/**
 * One fault under traffic: what it cost, and a row of the table that `bun run test` ends with.
 *
 *     const outcome = await underTraffic(stage, b, "agent killed with SIGKILL", async (fault) => {
 *       await fault.make(() => stage.agent.kill());
 *       await fault.heal(() => stage.agent.peers(…));
 *     });
 *     expect(outcome).toEqual(unharmed);
 *
 * 200 pings a second go through the tunnel from before the fault until long after it, and every packet that the
 * agent's machine sends is watched for ClusterNet in plain text.
 */
import type { BarePeer } from "./bare-peer.ts";
import { recordFault } from "./fault-table.ts";
import { LeakWatch } from "./leak-watch.ts";
import { pings, soonMs, type Stage } from "./stage.ts";

/** What a test expects of a fault. */
export interface FaultOutcome {
  readonly lost: number;
  /** Packets for ClusterNet that left unencrypted. */
  readonly leaked: readonly string[];
  /** For who reads of a failed test: only when packets were lost. */
  readonly how?: string;
}

/** The outcome of a fault that nobody felt. */
export const unharmed: FaultOutcome = { lost: 0, leaked: [] };

/** Marks when the fault was made and when it was over. */
export interface Fault {
  /** Makes the fault; pings are counted on from its end. A fault may be made and healed several times. */
  make(act: () => Promise<unknown>): Promise<void>;
  /** Waits until all is right again; of several times the longest is told. */
  heal(wait: () => Promise<unknown>): Promise<void>;
}

export interface TrafficOptions {
  /** How many pings there must be after the fault. Default: as many as "0 lost" is said of. */
  readonly pings?: number;
}

/** Pings before the fault: the tunnel is established. */
const pingsBefore = 20;

/** Runs `act` under traffic from the agent of the stage to the peer. */
export async function underTraffic(
  stage: Stage,
  peer: BarePeer,
  fault: string,
  act: (fault: Fault) => Promise<void>,
  options: TrafficOptions = {},
): Promise<FaultOutcome> {
  const { machine } = stage.agent;
  await using watch = await LeakWatch.start(machine);
  const ping = machine.ping(peer.target);
  await ping.sent(pingsBefore, soonMs);
  let madeAtMs = performance.now();
  let healedMs: number | null = null;
  await act({
    make: async (make) => {
      await make();
      madeAtMs = performance.now();
    },
    heal: async (wait) => {
      await wait();
      healedMs = Math.max(healedMs ?? 0, performance.now() - madeAtMs);
    },
  });
  // At 200 a second, and as many again while the fault was there.
  const sinceMs = performance.now() - madeAtMs;
  const enough = pingsBefore + Math.max(options.pings ?? pings, Math.floor((sinceMs / 1_000) * 200 * 0.8));
  await ping.sent(enough, (pings / 200) * 1_000 * 4 + soonMs);
  const { lost, late, sent, maxMs, lostNumbers, complaints } = await ping.stop();
  await recordFault({ fault, sent, lost, slowestMs: maxMs, healedMs });
  const leaked = await watch.stop();
  if (lost === 0) return { lost, leaked };
  const how = `${late} of ${lost} late, slowest ${maxMs} ms, ${sent} sent, first lost ${lostNumbers.join(" ")}; ping said: ${complaints.slice(0, 5).join("; ")}`;
  return { lost, leaked, how };
}
