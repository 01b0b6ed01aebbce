/**
 * Watches a machine's way out for packets of ClusterNet that are not encrypted (C4.1: there must be none, ever).
 *
 *     await using watch = await LeakWatch.start(machine);
 *     …
 *     expect(await watch.stop()).toEqual([]);
 *
 * A machine without a default route could not leak, so one is added, to a gateway that takes everything and
 * answers nothing. tcpdump sees what the kernel hands to the device.
 */
import { clusterNets } from "./executable.ts";
import { underlayDevice, type Machine } from "./lab.ts";
import type { LabProcess } from "./process.ts";

/** How many of the packets are told word by word. */
const namedPackets = 5;

const gateway = { address: "192.0.2.254", address6: "2001:db8::fffe", mac: "02:00:00:00:00:fe" };

/** tcpdump is ready, or ends, within this time. */
const startLimitMs = 10_000;

export class LeakWatch implements AsyncDisposable {
  readonly #capture: LabProcess;

  private constructor(capture: LabProcess) {
    this.#capture = capture;
  }

  /** Returns when every packet from now on is seen. One watch a machine at a time. */
  static async start(machine: Machine): Promise<LeakWatch> {
    const { address, address6, mac } = gateway;
    await machine.ip(
      `neighbour replace ${address} lladdr ${mac} dev ${underlayDevice}`,
      `neighbour replace ${address6} lladdr ${mac} dev ${underlayDevice}`,
      // With a metric of its own, so that a test may have a default route besides.
      `route replace default via ${address} dev ${underlayDevice} metric 32000`,
      `route replace default via ${address6} dev ${underlayDevice} metric 32000`,
    );
    const filter = clusterNets.map((network) => `net ${network}`).join(" or ");
    const options = ["--interface", underlayDevice, "--direction=out", "--immediate-mode", "-Z", "root"];
    const capture = machine.spawn(["tcpdump", "-n", "-l", ...options, filter]);
    await capture.waitForLine(/^listening on/, { limitMs: startLimitMs });
    return new LeakWatch(capture);
  }

  /** The first of the packets that left unencrypted, as tcpdump writes them. */
  async stop(): Promise<readonly string[]> {
    const running = this.#capture.exit === undefined;
    this.#capture.kill("SIGINT");
    await this.#capture.exited;
    // One that ended by itself has not seen everything.
    if (!running) throw new Error(this.#capture.describe());
    // It begins a new line before it says goodbye.
    const packets = this.#capture.stdout.split("\n").filter((line) => line !== "");
    return packets.slice(0, namedPackets);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#capture.kill("SIGINT");
    await this.#capture.exited;
  }
}
