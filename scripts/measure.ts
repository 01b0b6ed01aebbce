/**
 * Prints size, start time and memory of the executable: `bun run measure`. Needs root, as the lab does; about a minute.
 *
 * For people and for comparing two versions on one machine, not for CI: times and memory depend on the machine and on
 * what else runs. So every figure stands beside that of a Bun that does nothing, taken in the same run; Pss is lower
 * while other processes of the same executable run, since what they share is divided among them.
 */
import { stat } from "node:fs/promises";
import { join } from "node:path";
import { node } from "../test/fakes/curator.ts";
import { scriptedCurator } from "../test/lab/agent.ts";
import { Lab } from "../test/lab/lab.ts";
import { waitFor } from "../test/lab/wait.ts";
import { fetchStatus } from "../src/status-socket.ts";
import { build, isStale } from "./build.ts";
import { binary } from "./paths.ts";
import { setup } from "./setup.ts";

const starts = 20;
const peerCounts = [3, 1_000];
/** Memory is read this long after the last event: idle is when the garbage of the start is gone. */
const settleMs = 15_000;
const doNothing = "setInterval(() => {}, 1 << 30)";

/** Kibibytes of /proc/PID/smaps_rollup. */
async function readMemory(pid: number): Promise<Readonly<Record<string, number>>> {
  const text = await Bun.file(`/proc/${pid}/smaps_rollup`).text();
  return Object.fromEntries(
    Array.from(text.matchAll(/^(\w+):\s+(\d+) kB$/gm), ([, name = "", amount]) => [name, Number(amount)]),
  );
}

function printMemory(what: string, memory: Readonly<Record<string, number>>): void {
  const megabytes = (name: string): string => `${(((memory[name] ?? 0) * 1024) / 1e6).toFixed(1)} MB`;
  console.log(
    `memory, ${what}: RSS ${megabytes("Rss")}, Pss ${megabytes("Pss")}, of that anonymous ${megabytes("Pss_Anon")}`,
  );
}

/** Milliseconds from spawn to end, sorted, for each command; the commands take turns. */
function measureStarts(commands: Readonly<Record<string, readonly string[]>>): Map<string, number[]> {
  const taken = new Map<string, number[]>(Object.keys(commands).map((name) => [name, []]));
  // One more, which fills the page cache and does not count.
  for (let turn = 0; turn <= starts; turn++) {
    for (const [name, argv] of Object.entries(commands)) {
      const begun = performance.now();
      const { exitCode } = Bun.spawnSync([...argv], { stdout: "pipe", stderr: "inherit", env: {} });
      const ms = performance.now() - begun;
      if (exitCode !== 0) throw new Error(`"${argv.join(" ")}" ended with status ${exitCode}`);
      if (turn > 0) taken.get(name)?.push(ms);
    }
  }
  for (const each of taken.values()) each.sort((a, b) => a - b);
  return taken;
}

/** Memory of an agent that has applied a mesh of so many peers and has nothing to do. */
async function measureAgent(peers: number): Promise<Readonly<Record<string, number>>> {
  await using lab = await Lab.create();
  await using curator = await scriptedCurator(lab);
  const machine = await lab.machine("a");
  await curator.call.put(node({ id: "a", address: machine.address }));
  for (let number = 0; number < peers; number++) {
    await curator.call.put(
      node({
        id: `node-${number}`,
        key: crypto.getRandomValues(new Uint8Array(32)).toBase64(),
        address: `198.18.${number >> 8}.${number & 255}`,
        prefixes: [`10.${200 + (number >> 8)}.${number & 255}.0/24`],
      }),
    );
  }
  const directory = await lab.directory();
  const flags = {
    "--curator": curator.address,
    "--node-id": "a",
    "--data-dir": directory,
    "--external-address": machine.address,
    "--pod-prefix": "10.192.1.0/24",
    "--wireguard": "userspace",
  };
  const agent = machine.spawn([
    binary,
    "run",
    "--insecure",
    "--insecure-anywhere",
    ...Object.entries(flags).flat(),
  ]);
  await waitFor(
    async () => {
      const shown = await machine.run(["wg", "show", "clusternet", "peers"]);
      return shown.stdout.split("\n").length - 1 === peers;
    },
    { limitMs: 60_000, what: `${peers} peers`, detail: () => agent.describe() },
  );
  await Bun.sleep(settleMs);
  const memory = await readMemory(agent.pid);
  const fetched = await fetchStatus(join(directory, "clusternet.sock"), 5_000);
  if (fetched.kind !== "status" || !fetched.status.curator.fullPicture) {
    throw new Error(`The agent did not follow its Curator:\n${agent.describe()}`);
  }
  return memory;
}

async function measureIdleBun(): Promise<Readonly<Record<string, number>>> {
  const child = Bun.spawn([process.execPath, "-e", doNothing], { stdin: "ignore", stdout: "inherit" });
  try {
    await Bun.sleep(settleMs);
    return await readMemory(child.pid);
  } finally {
    child.kill("SIGKILL");
    await child.exited;
  }
}

await setup("tests");
if (await isStale()) await build();

console.log(`size of dist/clusternet: ${((await stat(binary)).size / 1e6).toFixed(1)} MB`);
for (const [name, sortedMs] of measureStarts({
  "clusternet --version": [binary, "--version"],
  "clusternet --help": [binary, "--help"],
  "bun -e 0": [process.execPath, "-e", "0"],
})) {
  const [least = Number.NaN] = sortedMs;
  const median = sortedMs[sortedMs.length >> 1] ?? Number.NaN;
  console.log(`start, ${name}: min ${least.toFixed(0)} ms, median ${median.toFixed(0)} ms of ${starts}`);
}
printMemory("bun -e, idle", await measureIdleBun());
for (const peers of peerCounts) {
  printMemory(`agent with ${peers.toLocaleString("en")} peers, idle`, await measureAgent(peers));
}
