/**
 * The agent on the kernel's own WireGuard, which the machine that runs the tests need not have: one boot of
 * Debian's kernel in qemu (scripts/vm.sh) in which kernel/guest.sh checks everything, one test for each check.
 *
 * Emulation is slow and unsteady, so that a reply counts as late after 1 s instead of 500 ms.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { binary, root } from "../../scripts/paths.ts";
import { recordFault } from "../lab/fault-table.ts";
import { long } from "../lab/long.ts";

/** For the whole guest; also the limit of the call. */
const limitSeconds = 480;

/** Nodes that come and go in one of the checks: at full size that alone takes minutes in emulation. */
const crowdSize = long ? 200 : 50;

/** In the order in which they run. */
const checks = [
  "first apply: every node reaches every other in both families",
  "the interface is the kernel's, with group, MTU, port and routes",
  "an address that no peer has is said to be unreachable at once",
  "change: a node's new prefixes replace the old ones at its peers, and nothing else moves",
  "removal: a removed node is no peer any more",
  "many nodes come, change and go: 0 of at least 2,000 pings to another node are lost",
  "adoption: SIGKILL and a new start lose 0 of at least 3,000 pings and keep the interface",
  "a clock that is set forward and back by a day costs no ping, no session's age and no wait",
  "a deleted interface is back, whole",
  "a renamed interface has its name back",
  "an interface that was set down is up, with its routes",
  "drifts that no packet needs are put back by the kernel's word: 0 of at least 1,000 pings lost",
  "drifts that break the way are put back by the kernel's word",
  "drifts of which the kernel does not tell are put back by the next comparison",
  "SIGTERM ends the agent with status 0 and the mesh stays",
  "down takes away what is ours and nothing else, and a second one does no harm",
  "a taken port is named, and the mesh comes up as soon as it is free",
  "the guest ran to its end",
];

let folder: string;
let output = "";
let guest: Bun.Subprocess<"ignore", "pipe", "inherit"> | undefined;

beforeAll(
  async () => {
    folder = await mkdtemp(join(tmpdir(), "clusternet-kernel-"));
    const crowd = join(folder, "crowd.js");
    const bundle = [process.execPath, "build", "--target=bun", "test/lab/crowd.ts", `--outfile=${crowd}`];
    const bundled = Bun.spawnSync(bundle, { cwd: root, stdout: "ignore", stderr: "inherit" });
    expect(bundled.exitCode).toBe(0);
    guest = Bun.spawn(
      [
        join(root, "scripts/vm.sh"),
        "-m1500",
        "-s2",
        `-t${limitSeconds}`,
        "-pping",
        "-psetpriv",
        `-a${binary}`,
        `-a${crowd}`,
        join(import.meta.dir, "kernel/guest.sh"),
        String(crowdSize),
      ],
      { stdin: "ignore", stdout: "pipe", stderr: "inherit" },
    );
    output = await new Response(guest.stdout).text();
    await guest.exited;
    // What was counted is worth a line in every log.
    for (const line of output.split("\n")) {
      if (/^# (\d+ sent|a crowd)/.test(line)) console.log(`kernel: ${line.slice(2)}`);
      await recordRow(line);
    }
  },
  limitSeconds * 1_000 + 60_000,
);

/** The guest's own rows of the table of faults: NAME|SENT WITHOUT-REPLY LATE SLOWEST|SECONDS. */
async function recordRow(line: string): Promise<void> {
  const row =
    /^# fault (?<name>[^|]+)\|(?<sent>\d+) (?<lost>\d+) (?<late>\d+) (?<slowest>[\d.]+)\|(?<healed>[\d.]+|-)$/.exec(
      line,
    )?.groups;
  if (row === undefined) return;
  await recordFault({
    fault: `kernel: ${row["name"]}`,
    sent: Number(row["sent"]),
    lost: Number(row["lost"]) + Number(row["late"]),
    slowestMs: Number(row["slowest"]),
    healedMs: row["healed"] === "-" ? null : Number(row["healed"]) * 1_000,
  });
}

afterAll(async () => {
  guest?.kill("SIGTERM");
  await guest?.exited;
  await rm(folder, { recursive: true, force: true });
});

test.each(checks)("kernel: %s", (name) => {
  const lines = output.split("\n");
  if (lines.includes(`ok ${name}`)) return;
  throw new Error(`The guest did not say "ok ${name}"; it said:\n${output}`);
});

test("the guest checks nothing that is not listed here", () => {
  const said = [...output.matchAll(/^(?:not )?ok (.*)$/gm)].map(([, name]) => name);
  expect(said).toEqual(checks);
});
