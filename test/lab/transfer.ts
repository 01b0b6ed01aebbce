/**
 * Bulk data over TCP between two namespaces of the lab, both ways: packets as large as the path takes.
 *
 *     await transfer({ from: a.pod, to: b.pod, address: "10.192.2.2", bytes: 4 << 20 });
 */
import { join } from "node:path";
import type { Namespace } from "./namespace.ts";

const program = join(import.meta.dir, "transfer-process.ts");

/** The whole transfer must be done after this time: one whose large packets are lost stands still. */
const limitMs = 30_000;

export interface TransferOptions {
  readonly from: Namespace;
  readonly to: Namespace;
  /** Of `to`. */
  readonly address: string;
  /** In each direction, one after the other. */
  readonly bytes: number;
}

/** Throws when not every byte arrives at both ends. */
export async function transfer({ from, to, address, bytes }: TransferOptions): Promise<void> {
  const server = to.spawn([process.execPath, program, "serve", address, String(bytes)]);
  try {
    const { text } = await server.waitForLine(/^\d+$/, { limitMs });
    const client = await from.run([process.execPath, program, "fetch", address, String(bytes), text], {
      limitMs,
    });
    if (client.code !== 0)
      throw new Error(`Cannot transfer to ${address}: ${client.stderr}\n${server.describe()}`);
  } finally {
    server.kill("SIGKILL");
    await server.exited;
  }
}
