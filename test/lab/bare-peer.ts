/**
 * A node of the mesh that the test controls: real WireGuard on a machine of the lab, without an agent.
 *
 *     const b = await BarePeer.start(await lab.machine("b"), 2);
 *     await b.know(agent);
 *     await curator.call.put(b.node("b"));
 *     await agent.machine.reach(b.target, { limitMs: 5_000 });
 *
 * It sends all of both ClusterNets to the one node it knows. Port and peer are the test's to change:
 * `machine.exec(["wg", "set", "wg0", …])`.
 */
import { privateKeyFromBytes, type PrivateKey, type PublicKey } from "../../src/core/key.ts";
import { node } from "../fakes/curator.ts";
import { clusterNets, type Agent } from "./agent.ts";
import type { Machine } from "./lab.ts";

const device = "wg0";

export interface BarePeerOptions {
  /** UDP port. Default 7838, which every node expects. */
  readonly listenPort?: number;
  /** PersistentKeepalive towards the node it knows: it then speaks first. */
  readonly keepaliveSeconds?: number;
  /** Default: a new one. */
  readonly key?: PrivateKey;
}

/** A WireGuard key that nobody else has. */
export function newKey(): PrivateKey {
  return privateKeyFromBytes(crypto.getRandomValues(new Uint8Array(32)));
}

export class BarePeer {
  readonly machine: Machine;
  readonly publicKey: PublicKey;
  /** Its pod prefix, 10.192.NUMBER.0/24. */
  readonly prefix: string;
  /** An address inside its pod prefix that answers pings. */
  readonly target: string;
  readonly #keepaliveSeconds: number;

  private constructor(machine: Machine, publicKey: PublicKey, number: number, keepaliveSeconds: number) {
    this.machine = machine;
    this.publicKey = publicKey;
    this.prefix = `10.192.${number}.0/24`;
    this.target = `10.192.${number}.2`;
    this.#keepaliveSeconds = keepaliveSeconds;
  }

  /** Makes the interface; nobody is let in before `know`. */
  static async start(machine: Machine, number: number, options: BarePeerOptions = {}): Promise<BarePeer> {
    const key = options.key ?? newKey();
    const peer = new BarePeer(machine, key.publicKey, number, options.keepaliveSeconds ?? 0);
    await machine.exec(["wireguard-go", device]);
    const port = String(options.listenPort ?? 7838);
    await machine.exec(["wg", "set", device, "listen-port", port, "private-key", "/dev/stdin"], {
      stdin: `${key.reveal()}\n`,
    });
    await machine.ip(
      `address add ${peer.target}/32 dev lo`,
      `link set ${device} mtu 1420 up`,
      ...clusterNets.map((network) => `route add ${network} dev ${device}`),
    );
    return peer;
  }

  /** How `wg show` of another node has it: key and allowed IPs. */
  get allowed(): readonly [publicKey: string, allowedIps: string] {
    return [this.publicKey, `${this.machine.address}/32,${this.prefix}`];
  }

  /** Makes the agent's node its only peer. */
  async know(agent: Agent): Promise<void> {
    const { node: known } = await agent.status((status) => status.node.publicKey !== null, 10_000);
    await this.machine.exec([
      "wg",
      "set",
      device,
      "peer",
      known.publicKey ?? "",
      "endpoint",
      `${agent.machine.address}:7838`,
      "allowed-ips",
      [...clusterNets, `${agent.machine.address}/32`].join(","),
      "persistent-keepalive",
      String(this.#keepaliveSeconds),
    ]);
  }

  /** This peer as a Curator tells of it. */
  node(id: string): Uint8Array {
    const { address } = this.machine;
    return node({ id, key: this.publicKey, address, prefixes: [`${address}/32`, this.prefix] });
  }
}
