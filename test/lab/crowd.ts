/**
 * Many nodes at once at a Curator of this project, without running any of them:
 *
 *     bun test/lab/crowd.ts CURATOR-HOST:PORT CURATOR-DATA-DIR COUNT STEP...
 *
 * STEP is `add` (every node reports an address and announces a key and a /24), `change` (every node announces
 * another key and another /24) or `remove` (every node is taken out). Prints a line after each step. The
 * nodes are called crowd-1, crowd-2, and so on; their addresses lie in 198.18.0.0/15, their prefixes in 10.208.0.0/12.
 */
import { createChannel, createClient, Metadata } from "nice-grpc";
import { changeMembership } from "../../src/curator-server/admin.ts";
import { NodeStatus } from "../../src/gen/common.ts";
import { CuratorDefinition } from "../../src/gen/curator.ts";

const [address, dataDirectory, countText, ...steps] = process.argv.slice(2);
const count = Number(countText);
if (address === undefined || dataDirectory === undefined || !Number.isInteger(count) || count > 2_000) {
  throw new Error("usage: crowd.ts HOST:PORT DATA-DIR COUNT STEP...");
}

const channel = createChannel(`dns:${address}`);
const client = createClient(CuratorDefinition, channel);

const idOf = (number: number): string => `crowd-${number}`;
const octets = (number: number): string => `${number >> 8}.${number & 255}`;

async function announce(number: number, network: string): Promise<void> {
  const metadata = new Metadata().set("clusternet-node-id", idOf(number));
  const externalAddress = `198.18.${octets(number)}`;
  await client.updateNodeStatus(
    { nodeId: idOf(number), status: NodeStatus.encode(NodeStatus.fromPartial({ externalAddress })).finish() },
    { metadata },
  );
  const wireguardPubkey = crypto.getRandomValues(new Uint8Array(32)).toBase64();
  const prefixes = [{ cidr: `${externalAddress}/32` }, { cidr: network }];
  await client.updateNodeClusterNetworking({ clusternet: { wireguardPubkey, prefixes } }, { metadata });
}

const perform: Readonly<Record<string, (number: number) => Promise<unknown>>> = {
  add: (number) => announce(number, `10.${208 + (number >> 8)}.${number & 255}.0/24`),
  change: (number) => announce(number, `10.${216 + (number >> 8)}.${number & 255}.0/24`),
  remove: (number) => changeMembership(dataDirectory, { change: "remove", id: idOf(number) }),
};

for (const step of steps) {
  const action = perform[step];
  if (action === undefined) throw new Error(`Cannot do step "${step}": expected add, change or remove`);
  for (let number = 1; number <= count; number++) await action(number);
  console.log(`${step}: ${count} nodes`);
}
channel.close();
