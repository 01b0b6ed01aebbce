/**
 * Builds the executable dist/clusternet and the library's types dist/lib: `bun run build`.
 *
 * The executable holds Bun, the program and its byte code, and needs nothing from this folder. It does
 * not load `.env` or the `preload` of a bunfig.toml from the directory that it is started in, which would
 * run anybody's code as root. Never strip it: that takes the program out and leaves Bun's own command line.
 * Files are put in place by rename, so that a running executable is never written to.
 */
import { mkdtemp, readdir, rename, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import packageJson from "../package.json" with { type: "json" };
import { binary, root } from "./paths.ts";
import { runTool } from "./tool.ts";

/** What the executable is made of: when one of these is newer, it is out of date. */
const sources = ["src", "package.json", "package-lock.json", "tsconfig.json", "scripts/build.ts"];

/** Builds both. Throws when a compiler refuses. */
export async function build(): Promise<void> {
  // On the same file system as the result, as rename wants it.
  await Bun.$`mkdir -p ${join(root, "dist")}`;
  const work = await mkdtemp(join(root, "dist/.build-"));
  try {
    await compile(join(work, "clusternet"));
    // Both files of an earlier build are replaced one after the other; the executable, which counts, comes last.
    for (const name of ["clusternet.map", "clusternet"]) {
      const made = join(work, name);
      if (await Bun.file(made).exists()) await rename(made, join(root, "dist", name));
    }
  } finally {
    await rm(work, { recursive: true, force: true });
  }
  await runTool(["tsc", "-p", "scripts/tsconfig.lib.json"]);
}

/** Whether the executable is missing or older than a source of it. */
export async function isStale(): Promise<boolean> {
  const built = await stat(binary).catch(() => undefined);
  if (built === undefined) return true;
  for (const source of sources) {
    if ((await newest(join(root, source))) > built.mtimeMs) return true;
  }
  return false;
}

/** Builds the executable alone, as a version of that name. */
export async function compile(outfile: string, version: string = packageJson.version): Promise<void> {
  const constants = {
    CLUSTERNET_VERSION: version,
    CLUSTERNET_COMMIT: await describeCommit(),
  };
  const defines = Object.entries(constants).map(
    ([name, value]) => `--define=${name}=${JSON.stringify(value)}`,
  );
  const flags = [
    "--compile",
    "--minify",
    "--bytecode",
    // Byte code of the other format refuses top-level await.
    "--format=esm",
    // Stack traces then name our files and lines.
    "--sourcemap",
    "--no-compile-autoload-dotenv",
    "--no-compile-autoload-bunfig",
    ...defines,
  ];
  const command = [process.execPath, "build", ...flags, "src/main.ts", "--outfile", outfile];
  const run = Bun.spawn(command, { cwd: root, stdout: "ignore", stderr: "inherit" });
  const status = await run.exited;
  if (status !== 0) throw new Error(`Cannot build the executable: "bun build" ended with status ${status}`);
}

/** The commit of the working tree, or "unknown" where there is no git or no repository. */
async function describeCommit(): Promise<string> {
  if (Bun.which("git") === null) return "unknown";
  const described = await Bun.$`git describe --always --dirty --abbrev=12 --exclude=${"*"}`
    .cwd(root)
    .nothrow()
    .quiet();
  return described.exitCode === 0 ? described.text().trim() : "unknown";
}

async function newest(path: string): Promise<number> {
  const found = await stat(path);
  if (!found.isDirectory()) return found.mtimeMs;
  let latest = found.mtimeMs;
  for (const name of await readdir(path)) latest = Math.max(latest, await newest(join(path, name)));
  return latest;
}

if (import.meta.main) {
  const started = performance.now();
  try {
    await build();
    const { size } = await stat(binary);
    const seconds = ((performance.now() - started) / 1000).toFixed(1);
    console.log(`built dist/clusternet (${(size / 1e6).toFixed(1)} MB) and dist/lib in ${seconds} s`);
  } catch (error) {
    console.error(error instanceof Error ? error.message : error);
    process.exitCode = 1;
  }
}
