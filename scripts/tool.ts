/**
 * Runs the programs that npm installs with this project.
 */
import { join } from "node:path";
import { root } from "./paths.ts";

/**
 * Runs a program of node_modules/.bin in the project's folder, its output on ours; throws when it fails.
 * It is run by this Bun: the Node of a Debian machine may be older than the tool accepts.
 */
export async function runTool(argv: readonly [string, ...string[]]): Promise<void> {
  const [name, ...rest] = argv;
  const run = Bun.spawn([process.execPath, join(root, "node_modules/.bin", name), ...rest], {
    cwd: root,
    stdin: "ignore",
    stdout: "inherit",
    stderr: "inherit",
  });
  const status = await run.exited;
  if (status !== 0) throw new Error(`"${argv.join(" ")}" ended with status ${status}`);
}
