/** Who listens on a UDP port, by the kernel's lists of both families. */
import { expect, test } from "bun:test";
import { isUdpPortHeld } from "../../src/host/udp-ports.ts";

test.each(["127.0.0.1", "0.0.0.0", "::1", "::"])(
  "isUdpPortHeld() knows of a socket on %s as long as it is there",
  async (hostname) => {
    const socket = await Bun.udpSocket({ hostname });
    const { port } = socket;
    try {
      expect(await isUdpPortHeld(port)).toBe(true);
    } finally {
      socket.close();
    }
    expect(await isUdpPortHeld(port)).toBe(false);
  },
);
