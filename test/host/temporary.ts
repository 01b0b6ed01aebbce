/**
 * Directories and disks that tests may fill: every one is gone when its test ends, also when it fails.
 *
 * A full or read-only disk is a tmpfs in a mount namespace of its own, because root ignores permission bits; it
 * goes away with the process that uses it.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Runs `use` with a new empty directory. */
export async function withDirectory<T>(use: (directory: string) => Promise<T> | T): Promise<T> {
  const directory = await mkdtemp(join(tmpdir(), "clusternet-test-"));
  try {
    return await use(directory);
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
}

export interface Disk {
  /** Mount options of the tmpfs, like "size=64k". */
  readonly mount: string;
  /** Shell commands run in the mounted directory before `code`. */
  readonly prepare?: string;
  /**
   * A module run by bun in the mounted directory, which is `process.cwd()`; imports name files under the project as
   * "SRC/…". Its default export becomes the result.
   */
  readonly code: string;
}

const project = join(import.meta.dir, "../..");

/** Runs `code` on a disk of its own. Throws with its stderr when it fails. */
export async function onDisk({ mount, prepare = "true", code }: Disk): Promise<unknown> {
  return await withDirectory(async (directory) => {
    const script = join(directory, "code.ts");
    const disk = join(directory, "disk");
    await Bun.write(script, `${code.replaceAll("SRC/", `${project}/src/`)}\n`);
    await Bun.write(
      join(directory, "main.ts"),
      `const { default: result } = await import(${JSON.stringify(script)});\nconsole.log(JSON.stringify(result ?? null));\n`,
    );
    const shell = `set -e; mkdir "$1"; mount -t tmpfs -o "$2" tmpfs "$1"; cd "$1"; ${prepare}; cd "$1"; exec "$3" "$4"`;
    const argv = [
      "unshare",
      "-m",
      "sh",
      "-c",
      shell,
      "sh",
      disk,
      mount,
      process.execPath,
      join(directory, "main.ts"),
    ];
    const child = Bun.spawn(argv, { stdout: "pipe", stderr: "pipe" });
    const [stdout, stderr, status] = await Promise.all([
      new Response(child.stdout).text(),
      new Response(child.stderr).text(),
      child.exited,
    ]);
    if (status !== 0) throw new Error(`Cannot run code on a disk of its own: exit ${status}: ${stderr}`);
    return JSON.parse(stdout) as unknown;
  });
}

/** A number of the mode as `ls` would show it, like "600". */
export function octal(mode: number): string {
  return (mode & 0o7777).toString(8);
}

/** What was thrown, as its one line and its exit status. */
export async function failure(
  action: () => unknown,
): Promise<{ message: string; exit: unknown; hint: unknown }> {
  try {
    await action();
  } catch (error) {
    if (!(error instanceof Error)) throw error;
    const { exit, hint } = error as Error & { exit?: unknown; hint?: unknown };
    return { message: error.message, exit, hint };
  }
  throw new Error("Expected an error, but nothing was thrown");
}
