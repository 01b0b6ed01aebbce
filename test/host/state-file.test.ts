/** The state file: what a restart remembers, and what becomes of damage. */
import { describe, expect, test } from "bun:test";
import { chmod, lstat, mkdir, readdir, readFile, rmdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { parseAddress, parseInterfacePrefix, parsePrefix } from "../../src/core/prefix.ts";
import {
  adoptFormerFiles,
  AgentMemory,
  emptyState,
  readBootId,
  StateFile,
  type AgentState,
} from "../../src/host/state-file.ts";
import { silentLogger, type Logger } from "../../src/log.ts";
import { failure, octal, withDirectory } from "./temporary.ts";

const state: AgentState = {
  loopbackAddresses: [parseAddress("10.192.1.1"), parseAddress("fd00::1")],
  clusterNets: [parsePrefix("10.192.0.0/11")],
  interfaceName: "clusternet",
  listenPort: 7838,
  learnedCurators: [{ nodeId: "c1", address: "192.0.2.1:7835" }],
  podNetwork: {
    source: "Kubernetes Node n1",
    prefixes: [parsePrefix("10.192.1.0/24"), parseInterfacePrefix("10.192.2.1/24")],
  },
};

const other = [{ nodeId: "c9", address: "192.0.2.9:1" }];

const stateText = `{
  "version": 1,
  "bootId": "boot",
  "loopbackAddresses": [
    "10.192.1.1",
    "fd00::1"
  ],
  "clusterNets": [
    "10.192.0.0/11"
  ],
  "interfaceName": "clusternet",
  "listenPort": 7838,
  "learnedCurators": [
    {
      "nodeId": "c1",
      "address": "192.0.2.1:7835"
    }
  ],
  "podNetwork": {
    "source": "Kubernetes Node n1",
    "prefixes": [
      "10.192.1.0/24",
      "10.192.2.1/24"
    ]
  }
}
`;

async function withStateFile(use: (path: string) => Promise<void>): Promise<void> {
  await withDirectory((directory) => use(join(directory, "clusternet.state")));
}

/** A logger that keeps its warnings. */
function recorder(): { logger: Logger; warnings: string[] } {
  const warnings: string[] = [];
  return {
    warnings,
    logger: {
      ...silentLogger,
      warn: (message, fields) => void warnings.push(`${message}: ${fields?.["reason"]}`),
    },
  };
}

describe("StateFile", () => {
  test("writes this text, mode 0600, and not again what is there", async () => {
    await withStateFile(async (path) => {
      const file = new StateFile(path, "boot");
      expect([await file.write(state), await file.write({ ...state })]).toEqual([true, false]);
      expect([await readFile(path, "utf8"), octal((await lstat(path)).mode)]).toEqual([stateText, "600"]);
    });
  });

  test.each([
    { name: "everything in the same boot", bootId: "boot", content: stateText, want: state },
    {
      name: "all but the loopback addresses after another boot",
      bootId: "next",
      content: stateText,
      want: { ...state, loopbackAddresses: [] },
    },
    {
      name: "what a later version adds is passed over",
      bootId: "boot",
      content: stateText.replace("{", '{ "more": [1],'),
      want: state,
    },
    {
      name: "nothing where nothing was known",
      bootId: "boot",
      content: '{"version":1,"bootId":"boot","loopbackAddresses":[],"clusterNets":[],"learnedCurators":[]}',
      want: emptyState,
    },
    {
      name: "all but Curators of which no node is named",
      bootId: "boot",
      content: stateText.replace(/\{\s*"nodeId[^}]*\}/, '"192.0.2.1:7835"'),
      want: { ...state, learnedCurators: [] },
    },
  ])("remembers $name", async ({ bootId, content, want }) => {
    await withStateFile(async (path) => {
      await writeFile(path, content, { mode: 0o600 });
      const { logger, warnings } = recorder();
      expect(await new StateFile(path, bootId).read(logger)).toEqual(want);
      expect(warnings).toEqual([]);
    });
  });

  test("is empty, without a word, where there is no file", async () => {
    await withStateFile(async (path) => {
      const { logger, warnings } = recorder();
      expect([await new StateFile(path, "boot").read(logger), warnings]).toEqual([emptyState, []]);
    });
  });

  test.each([
    { name: "closes a file that others could read", options: {}, want: "600" },
    { name: "leaves it when it is only looked at", options: { closeToOthers: false }, want: "644" },
  ])("$name", async ({ options, want }) => {
    await withStateFile(async (path) => {
      await writeFile(path, stateText);
      await chmod(path, 0o644);
      expect(await new StateFile(path, "boot").read(silentLogger, options)).toEqual(state);
      expect(octal((await lstat(path)).mode)).toBe(want);
    });
  });

  const damaged: readonly { name: string; content: string; reason: string }[] = [
    { name: "empty", content: "", reason: "it is not JSON" },
    { name: "cut", content: stateText.slice(0, 100), reason: "it is not JSON" },
    {
      name: "of another version",
      content: stateText.replace("1,", "2,"),
      reason: 'field "version" is missing or wrong',
    },
    { name: "not an object", content: "[]", reason: 'field "version" is missing or wrong' },
    {
      name: "with a text that is a number",
      content: stateText.replace('"fd00::1"', "7"),
      reason: 'field "loopbackAddresses.1" is missing or wrong',
    },
    {
      name: "with a port that cannot be",
      content: stateText.replace("7838", "70000"),
      reason: 'field "listenPort" is missing or wrong',
    },
    {
      name: "with an interface name that cannot be",
      content: stateText.replace('"clusternet"', '"a/b"'),
      reason: "interfaceName",
    },
    {
      name: "with an address that is none",
      content: stateText.replace("fd00::1", "fd00::g"),
      reason: "fd00::g",
    },
    {
      name: "with a prefix that is none",
      content: stateText.replace("10.192.0.0/11", "10.192.0.1/11"),
      reason: "10.192.0.1/11",
    },
  ];
  test.each(damaged)(
    "logs a file that is $name, takes it for empty, and writes over it",
    async ({ content, reason }) => {
      await withStateFile(async (path) => {
        await writeFile(path, content, { mode: 0o600 });
        const { logger, warnings } = recorder();
        const file = new StateFile(path, "boot");
        expect(await file.read(logger)).toEqual(emptyState);
        expect(warnings).toEqual([expect.stringContaining(reason)]);
        expect(await file.write(state)).toBe(true);
        expect(await readFile(path, "utf8")).toBe(stateText);
      });
    },
  );

  test("logs a directory in its place", async () => {
    await withStateFile(async (path) => {
      await mkdir(path);
      const { logger, warnings } = recorder();
      expect(await new StateFile(path, "boot").read(logger)).toEqual(emptyState);
      expect(warnings).toEqual([expect.stringContaining("it is a directory, expected a regular file")]);
    });
  });
});

test("readBootId() is the kernel's and stays the same", async () => {
  expect(await readBootId()).toMatch(/^[0-9a-f-]{36}$/);
  expect(await readBootId()).toBe(await readBootId());
});

describe("AgentMemory", () => {
  test("keeps what host and agent each change, whoever writes first", async () => {
    await withStateFile(async (path) => {
      const memory = new AgentMemory(emptyState, new StateFile(path, "boot"));
      const { learnedCurators, podNetwork, ...ofHost } = state;
      await Promise.all([
        memory.learn(other),
        memory.set(ofHost),
        memory.rememberPodNetwork(podNetwork),
        memory.learn(learnedCurators),
      ]);
      expect(memory.get()).toEqual(state);
      expect(await readFile(path, "utf8")).toBe(stateText);
    });
  });

  test("says that it cannot be written, remembers all the same, and writes it with what comes next", async () => {
    await withStateFile(async (path) => {
      const { learnedCurators, podNetwork, ...ofHost } = state;
      await mkdir(path);
      const memory = new AgentMemory(emptyState, new StateFile(path, "boot"));
      expect(await memory.learn(learnedCurators).catch(() => "refused")).toBe("refused");
      expect(await memory.rememberPodNetwork(podNetwork).catch(() => "refused")).toBe("refused");
      await rmdir(path);
      await memory.set(ofHost);
      expect(await readFile(path, "utf8")).toBe(stateText);
    });
  });

  test("without a file writes nothing", async () => {
    await withStateFile(async (path) => {
      const memory = new AgentMemory(emptyState);
      await memory.learn(other);
      expect([memory.get().learnedCurators, await Bun.file(path).exists()]).toEqual([other, false]);
    });
  });
});

describe("adoptFormerFiles()", () => {
  test.each([
    {
      name: "gives mesh and state of another interface to this one",
      there: { "old.conf": "mesh", "old.state": "state", "private.key": "key" },
      want: { "mesh0.conf": "mesh", "mesh0.state": "state", "private.key": "key" },
      former: "old",
    },
    {
      name: "takes the state alone where this one has a mesh: a crash was between the two",
      there: { "old.state": "state", "mesh0.conf": "mesh" },
      want: { "mesh0.conf": "mesh", "mesh0.state": "state" },
      former: "old",
    },
    {
      name: "leaves all as it is where this one has a state",
      there: { "old.conf": "mesh", "old.state": "state", "mesh0.state": "own" },
      want: { "old.conf": "mesh", "old.state": "state", "mesh0.state": "own" },
      former: undefined,
    },
    {
      name: "finds nothing in the files of a first start, or half written",
      there: { "private.key": "key", ".old.state.0123456789abcdef.clusternet-tmp": "x" },
      want: { "private.key": "key", ".old.state.0123456789abcdef.clusternet-tmp": "x" },
      former: undefined,
    },
  ])("$name", async ({ there, want, former }) => {
    await withDirectory(async (directory) => {
      for (const [name, text] of Object.entries(there)) await writeFile(join(directory, name), text ?? "");
      expect(await adoptFormerFiles(directory, "mesh0")).toBe(former);
      const found: Record<string, string> = {};
      for (const name of await readdir(directory))
        found[name] = await readFile(join(directory, name), "utf8");
      expect(found).toEqual(want as Record<string, string>);
    });
  });

  test("says of a directory that cannot be read which it is", async () => {
    const { message } = await failure(() => adoptFormerFiles("/nowhere", "mesh0"));
    expect(message).toBe(
      'Cannot find what runs under another interface name left in "/nowhere": ENOENT: no such file or directory',
    );
  });
});
