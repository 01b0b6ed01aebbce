/**
 * Which UDP ports of this network namespace somebody listens on, by the kernel's own lists: looking takes no port, not even
 * for a moment. Sockets of the kernel's WireGuard are in them too.
 */
import { readFile } from "node:fs/promises";
import { isSystemError } from "../errors.ts";

/** True when a socket has the port, on any address. Where a host has no IPv6 there is no list of it. */
export async function isUdpPortHeld(port: number): Promise<boolean> {
  const lists = await Promise.all(["udp", "udp6"].map(readList));
  const ending = `:${port.toString(16).toUpperCase().padStart(4, "0")}`;
  // "  sl  local_address rem_address …", below it "  12: 00000000:1E9E 00000000:0000 …".
  return lists.some((list) =>
    list.split("\n").some((line) => line.trim().split(/\s+/)[1]?.endsWith(ending) === true),
  );
}

async function readList(name: string): Promise<string> {
  try {
    return await readFile(`/proc/self/net/${name}`, "utf8");
  } catch (error) {
    if (isSystemError(error, "ENOENT")) return "";
    throw error;
  }
}
