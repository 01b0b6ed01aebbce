/**
 * src/gen is what proto makes, and the script that says so notices when it is not.
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { appendFile, cp, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

const root = join(import.meta.dir, "../..");
let copy = "";

beforeAll(async () => {
  copy = await mkdtemp(join(tmpdir(), "gen-proto-"));
  for (const folder of ["proto", "scripts", "src/gen"]) {
    await cp(join(root, folder), join(copy, folder), { recursive: true });
  }
  await symlink(join(root, "node_modules"), join(copy, "node_modules"));
});

afterAll(async () => {
  await rm(copy, { recursive: true, force: true });
});

async function genProto(...args: readonly string[]): Promise<{ status: number; stderr: string }> {
  const run = Bun.spawn([process.execPath, join(copy, "scripts/gen-proto.ts"), ...args], {
    stdout: "ignore",
    stderr: "pipe",
  });
  const stderr = await new Response(run.stderr).text();
  return { status: await run.exited, stderr };
}

test("gen-proto --check finds nothing to say of what is committed", async () => {
  expect(await genProto("--check")).toEqual({ status: 0, stderr: "" });
}, 30_000);

test("gen-proto --check names the files that differ, and gen-proto makes them right", async () => {
  await appendFile(join(copy, "src/gen/common.ts"), "// by hand\n");
  await writeFile(join(copy, "src/gen/left-over.ts"), "");
  await rm(join(copy, "src/gen/google"), { recursive: true });
  expect(await genProto("--check")).toEqual({
    status: 1,
    stderr:
      'src/gen differs from proto: common.ts, google/protobuf/timestamp.ts, left-over.ts; run "bun run gen-proto" and commit the result\n',
  });
  expect(await genProto()).toEqual({ status: 0, stderr: "" });
  expect(await genProto("--check")).toEqual({ status: 0, stderr: "" });
}, 30_000);
