/**
 * The floor: the least that a change of the mesh can cost a program in this language.
 *
 *     bun scripts/bench/floor.ts FROM TO COMMANDS
 *
 * At each line "go" on standard input it writes the content of FROM to TO as the agent must (a temporary file, fsync, rename,
 * fsync of the directory), and runs the next of the lists of commands that the JSON file COMMANDS holds. It reads
 * everything before it prints "ready", knows no mesh, no Curator and no failure, and prints "done" after each round.
 */
import { closeSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from "node:fs";
import { dirname } from "node:path";

const [from = "", to = "", commands = ""] = process.argv.slice(2);
const bytes = readFileSync(from);
const rounds = JSON.parse(readFileSync(commands, "utf8")) as string[][][];

function sync(path: string, flags: string, content?: Uint8Array): void {
  const file = openSync(path, flags, 0o600);
  if (content !== undefined) writeSync(file, content);
  fsyncSync(file);
  closeSync(file);
}

console.log("ready");
let next = 0;
for await (const line of console) {
  if (line !== "go") break;
  sync(`${to}.new`, "w", bytes);
  renameSync(`${to}.new`, to);
  sync(dirname(to), "r");
  for (const argv of rounds[next++ % rounds.length] ?? []) {
    const { exitCode } = Bun.spawnSync(argv, { stdin: "ignore", stdout: "ignore", stderr: "inherit" });
    if (exitCode !== 0) throw new Error(`"${argv.slice(0, 3).join(" ")}" ended with status ${exitCode}`);
  }
  console.log("done");
}
