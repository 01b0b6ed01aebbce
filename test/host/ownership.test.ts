/** What is remembered as ours, before and after an apply, and what of it is believed. */
import { describe, expect, test } from "bun:test";
import { parseAddress, parsePrefix } from "../../src/core/prefix.ts";
import { type HostMemory, type HostRemembers, Ownership } from "../../src/host/ownership.ts";
import { silentLogger } from "../../src/log.ts";
import { FakeMemory } from "../fakes/host.ts";
import { publicKeyOf, wantedHost } from "../fakes/wanted.ts";

function remembers(
  addresses: readonly string[],
  networks: readonly string[],
  more: Pick<HostRemembers, "interfaceName" | "listenPort"> = {},
): HostRemembers {
  return {
    loopbackAddresses: addresses.map(parseAddress),
    clusterNets: networks.map(parsePrefix),
    ...more,
  };
}

function ownershipOf(memory: HostMemory, log = silentLogger): Ownership {
  return new Ownership({ memory, ourKeys: new Set([publicKeyOf(7)]), log });
}

const wanted = wantedHost();
const settings = { interfaceName: "clusternet", listenPort: 7838 };

describe("Ownership", () => {
  test("believes of remembered addresses those that a ClusterNet of now or before may have given", () => {
    const memory = new FakeMemory();
    memory.current = remembers(
      ["10.192.1.1", "172.16.0.1", "203.0.113.7", "::1", "127.0.0.1"],
      ["172.16.0.0/12", "::/1", "127.0.0.0/8"],
    );
    const owned = ownershipOf(memory).of(wanted);
    expect({
      addedLoopback: [...owned.addedLoopback],
      ourKeys: [...owned.ourKeys],
      formerClusterNets: owned.formerClusterNets.map(({ text }) => text),
    }).toEqual({
      addedLoopback: ["10.192.1.1", "172.16.0.1"],
      ourKeys: [publicKeyOf(7), wanted.publicKey],
      formerClusterNets: ["172.16.0.0/12", "::/1", "127.0.0.0/8"],
    });
  });

  test("remembers what may be left behind before, and what is there after, each once", async () => {
    const memory = new FakeMemory();
    memory.current = remembers([], ["172.16.0.0/12"], { interfaceName: "other" });
    const ownership = ownershipOf(memory);
    const written: HostRemembers[] = [];
    const note = async (write: () => Promise<void>): Promise<void> => {
      await write();
      const { writes } = memory;
      await write();
      expect(memory.writes).toBe(writes);
      written.push(memory.current);
    };
    const [first, second] = [parseAddress("10.192.1.1"), parseAddress("10.192.2.1")];
    await note(() => ownership.forgetFormer(wanted));
    await note(() => ownership.noteBefore(wanted));
    await note(() => ownership.noteLoopback(first, true));
    await note(() => ownership.noteLoopback(second, true));
    await note(() => ownership.noteAfter(wanted, ["127.0.0.1", second.text]));
    await note(() => ownership.noteDown());
    const now = ["10.192.0.0/11", "fd00::/16"];
    const all = [...now, "172.16.0.0/12"];
    expect(written).toEqual([
      remembers([], ["172.16.0.0/12"], { interfaceName: "clusternet" }),
      remembers([], all, settings),
      remembers([first.text], all, settings),
      remembers([first.text, second.text], all, settings),
      remembers([second.text], now, settings),
      remembers([second.text], []),
    ]);
  });

  test("warns when it cannot remember, and goes on", async () => {
    const warnings: string[] = [];
    const log = { ...silentLogger, warn: (message: string) => warnings.push(message) };
    const memory: HostMemory = {
      get: () => remembers([], []),
      set: () => Promise.reject(new Error("no space left")),
    };
    await ownershipOf(memory, log).noteBefore(wanted);
    expect(warnings).toEqual(["What was changed on this host may be unknown after a restart"]);
  });
});
