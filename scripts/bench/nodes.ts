/**
 * Nodes that exist on paper only, as many as a row wants: each with a key, an address that nobody has, an IPv4 and an
 * IPv6 pod prefix. The mesh of 10,000 of them is a file of about 2 MB.
 */
import { asNodeId } from "../../src/core/node.ts";
import { openSqliteStore } from "../../src/curator-server/sqlite-store.ts";
import type { StoredChange } from "../../src/curator-server/store.ts";
import { NodeStatus } from "../../src/gen/common.ts";
import { node } from "../../test/fakes/curator.ts";

/** A /26 each, twice over, is what fits into 10.192.0.0/11. */
const mostNodes = 16_000;

export interface PaperNode {
  readonly id: string;
  readonly key: string;
  readonly address: string;
  /** What it announces: by turns one of two IPv4 prefixes. */
  prefixes(turn: number): readonly string[];
}

/** Nodes `node-00001` and so on. */
export function paperNodes(count: number): readonly PaperNode[] {
  if (count > mostNodes) throw new Error(`Cannot make ${count} nodes: expected at most ${mostNodes}`);
  return Array.from({ length: count }, (_, index) => {
    const number = index + 1;
    const address = `198.${18 + (number >> 16)}.${(number >> 8) & 255}.${number & 255}`;
    const offset = number * 64;
    const network = (turn: number): string =>
      `10.${192 + 16 * (turn % 2) + (offset >> 16)}.${(offset >> 8) & 255}.${offset & 255}/26`;
    return {
      id: `node-${String(number).padStart(5, "0")}`,
      key: crypto.getRandomValues(new Uint8Array(32)).toBase64(),
      address,
      prefixes: (turn) => [`${address}/32`, network(turn), `fd10:c1:0:${number.toString(16)}::/64`],
    };
  });
}

/** As a Curator tells of it. */
export function encodePaperNode(paper: PaperNode, turn = 0): Uint8Array {
  const { id, key, address } = paper;
  return node({ id, key, address, prefixes: paper.prefixes(turn), seconds: 1_780_000_000 });
}

/** Writes the nodes into the database of our Curator, which must not run: announcing them takes a minute. */
export function seedCurator(database: string, papers: readonly PaperNode[]): void {
  const store = openSqliteStore(database);
  const reportedAtMs = 1_780_000_000_000;
  const changes = papers.flatMap((paper): StoredChange[] => {
    const id = asNodeId(paper.id);
    if (id === undefined) throw new Error(`"${paper.id}" is no node ID`);
    const status = NodeStatus.encode(
      NodeStatus.fromPartial({
        externalAddress: paper.address,
        timestamp: { seconds: BigInt(reportedAtMs / 1_000), nanos: 0 },
      }),
    ).finish();
    const stored = {
      id,
      externalAddress: paper.address,
      reportedAtMs,
      status,
      publicKey: paper.key,
      prefixes: paper.prefixes(0),
    };
    return [
      { kind: "put", node: stored },
      { kind: "use-key", publicKey: paper.key, id },
    ];
  });
  try {
    store.commit(changes, () => {
      throw new Error("the database was taken away while it was filled");
    });
  } finally {
    store.close();
  }
}
