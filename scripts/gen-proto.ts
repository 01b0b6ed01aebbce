/**
 * Makes src/gen from proto: `bun scripts/gen-proto.ts`; with `--check` it changes nothing and exits 1 when what
 * is committed differs from what would be made.
 *
 * Works offline: buf and ts-proto come from node_modules, and buf brings the well-known types. ts-proto stays at
 * 1.x because 2.x writes code for another runtime than protobufjs.
 */
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";

const root = join(import.meta.dir, "..");
const committed = join(root, "src/gen");
const bin = join(root, "node_modules/.bin");

const template = {
  version: "v2",
  plugins: [
    {
      // Run by this Bun, so that no other runtime has to be installed.
      local: [process.execPath, join(bin, "protoc-gen-ts_proto")],
      out: ".",
      include_imports: true,
      include_wkt: true,
      opt: [
        "outputServices=nice-grpc",
        "outputServices=generic-definitions",
        "useExactTypes=false",
        "esModuleInterop=true",
        "oneof=unions",
        // A timestamp beyond 2^53 seconds is one node's nonsense and must not throw; Date would lose nanoseconds.
        "forceLong=bigint",
        "useDate=false",
        "removeEnumPrefix=true",
        "outputJsonMethods=false",
        // `.ts` would also rewrite `protobufjs/minimal`; Bun and tsc find the .ts behind a .js.
        "importSuffix=.js",
        "enumsAsLiterals=true",
        "unrecognizedEnum=false",
      ],
    },
  ],
};

async function generate(into: string): Promise<void> {
  const run = Bun.spawn(
    [join(bin, "buf"), "generate", "proto", "--template", JSON.stringify(template), "--output", into],
    { cwd: root, stdout: "inherit", stderr: "inherit" },
  );
  const status = await run.exited;
  if (status !== 0) throw new Error(`Cannot generate from proto: buf ended with status ${status}`);
}

/** Every file below the folder, by its relative path. */
async function filesBelow(folder: string): Promise<Map<string, string>> {
  const files = new Map<string, string>();
  for (const entry of await readdir(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const path = join(entry.parentPath, entry.name);
    files.set(relative(folder, path), await readFile(path, "utf8"));
  }
  return files;
}

/** Paths that are missing, too many, or different. */
async function driftOf(fresh: string): Promise<string[]> {
  const wanted = await filesBelow(fresh);
  const seen = await filesBelow(committed);
  return [...new Set([...wanted.keys(), ...seen.keys()])]
    .filter((path) => wanted.get(path) !== seen.get(path))
    .toSorted();
}

if (process.argv.includes("--check")) {
  const fresh = await mkdtemp(join(tmpdir(), "clusternet-gen-"));
  let drift: string[];
  try {
    await generate(fresh);
    drift = await driftOf(fresh);
  } finally {
    await rm(fresh, { recursive: true });
  }
  if (drift.length > 0) {
    console.error(
      `src/gen differs from proto: ${drift.join(", ")}; run "bun run gen-proto" and commit the result`,
    );
    process.exitCode = 1;
  }
} else {
  await rm(committed, { recursive: true, force: true });
  await generate(committed);
}
