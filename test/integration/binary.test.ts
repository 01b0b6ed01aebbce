/**
 * The executable itself: that it is one, and that the directory it is started in has no say in what it runs.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { access, copyFile, mkdir, mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import packageJson from "../../package.json" with { type: "json" };
import { binary } from "../../scripts/paths.ts";

let folder: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "clusternet-binary-"));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const exists = (path: string): Promise<boolean> =>
  access(path).then(
    () => true,
    () => false,
  );

/** Runs an executable in a directory with nothing in its environment. */
async function run(argv: readonly string[], cwd: string) {
  const child = Bun.spawn([...argv], { cwd, env: {}, stdin: "ignore", stdout: "pipe", stderr: "pipe" });
  const [stdout, stderr, status] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  return { status, stdout, stderr };
}

/** Runs the executable where it may map 2 GB. */
async function runLimited(words: readonly string[]) {
  return await run(["/bin/sh", "-c", 'ulimit -v 2000000; exec "$@"', "sh", binary, ...words], folder);
}

test("--version prints version, commit and platform in one line", async () => {
  const { status, stdout, stderr } = await run([binary, "--version"], folder);
  expect({ status, stderr }).toEqual({ status: 0, stderr: "" });
  expect(stdout).toMatch(
    new RegExp(
      `^clusternet ${RegExp.escape(packageJson.version)} \\(commit ([0-9a-f]{12}(-dirty)?|unknown), linux-(x64|arm64)\\)\\n$`,
    ),
  );
});

test("runs from anywhere, copied to another place without the project beside it", async () => {
  const copy = join(folder, "copy");
  await copyFile(binary, copy);
  const { status, stdout } = await run([copy, "--help"], "/");
  expect(status).toBe(0);
  expect(stdout).toContain("Usage: clusternet");
  await rm(copy);
});

test("says which limit keeps it from working where it may map little memory, and shows its help all the same", async () => {
  expect(await runLimited(["status", "--data-dir", "/nowhere"])).toEqual({
    status: 69,
    stdout: "",
    stderr:
      "Cannot call the C library: bun:ffi requires the JIT\n" +
      "  hint: Lift the limit of this process' address space (`ulimit -v unlimited` in a shell, LimitAS=infinity in a unit of systemd), and unset BUN_JSC_useJIT\n",
  });
  expect((await runLimited(["--help"])).stdout).toStartWith("Usage: clusternet");
});

test("is an executable file of a sane size, not the 100 MB of Bun alone nor twice that", async () => {
  const { mode, size } = await stat(binary);
  expect((mode & 0o777).toString(8)).toBe("755");
  expect(size).toBeGreaterThan(100e6);
  expect(size).toBeLessThan(130e6);
});

describe("started in a hostile directory", () => {
  let hostile: string;
  let trace: string;

  beforeAll(async () => {
    hostile = join(folder, "hostile");
    trace = join(folder, "preload-ran");
    await mkdir(join(hostile, "node_modules/evil"), { recursive: true });
    const code = `require("node:fs").writeFileSync(${JSON.stringify(trace)}, "x");`;
    await writeFile(join(hostile, "evil.js"), code);
    await writeFile(join(hostile, "node_modules/evil/index.js"), code);
    await writeFile(
      join(hostile, "bunfig.toml"),
      `preload = ["./evil.js", "evil"]\n[test]\npreload = ["./evil.js"]\n`,
    );
    // Wrong on purpose: had it been read, the command would end with 64.
    await writeFile(
      join(hostile, ".env"),
      "CLUSTERNET_INTERFACE=not a name\nCLUSTERNET_DATA_DIR=/nowhere/at/all\n",
    );
    for (const name of [".env.local", ".env.production", ".env.development"]) {
      await copyFile(join(hostile, ".env"), join(hostile, name));
    }
    await writeFile(
      join(hostile, "tsconfig.json"),
      JSON.stringify({ compilerOptions: { paths: { "*": ["./evil.js"] } } }),
    );
    await writeFile(join(hostile, "package.json"), JSON.stringify({ name: "clusternet", main: "evil.js" }));
  });

  // Both the command that does nothing and one that reads settings and files.
  test.each([
    { name: "--version", argv: ["--version"] },
    { name: "pubkey", argv: ["pubkey", "--data-dir", "DATA"] },
  ])("$name runs nothing of it and reads no setting from it", async ({ argv }) => {
    const data = join(folder, `data-${argv[0]}`);
    const command = [binary, ...argv.map((word) => (word === "DATA" ? data : word))];
    const { status, stderr } = await run(command, hostile);
    expect({ status, stderr }).toEqual({ status: 0, stderr: "" });
    expect(await exists(trace)).toBe(false);
  });

  test("the trap works: Bun itself, started there, runs the preload", async () => {
    await run([process.execPath, "-e", "0"], hostile);
    expect(await exists(trace)).toBe(true);
    await rm(trace);
  });

  test("the trap works: the settings in .env, given as environment, are refused", async () => {
    const child = Bun.spawnSync([binary, "pubkey"], {
      cwd: hostile,
      env: { CLUSTERNET_INTERFACE: "not a name" },
    });
    expect(child.exitCode).toBe(64);
    expect(child.stderr.toString()).toContain("CLUSTERNET_INTERFACE");
  });
});
