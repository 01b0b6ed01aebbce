/**
 * Runs the tests of the Kubernetes source against a real kube-apiserver: `bun run test:kube [OPTION-OF-BUN-TEST...]`.
 *
 * Builds it first where it is not yet there (scripts/kube-apiserver.sh says what that takes), in dist/kube or the
 * directory that CLUSTERNET_TEST_KUBE names, starts it, and ends it when the tests have. Not part of the check: a first
 * build takes longer than all of that.
 */
import { join, resolve } from "node:path";
import { closingLine, isGood } from "./junit.ts";
import { root } from "./paths.ts";
import { setup } from "./setup.ts";
import { runTests } from "./test.ts";

const directory = resolve(process.env["CLUSTERNET_TEST_KUBE"] ?? join(root, "dist/kube"));

async function apiserver(command: "build" | "start" | "stop"): Promise<void> {
  const run = Bun.spawn([join(root, "scripts/kube-apiserver.sh"), command, directory], {
    stdin: "ignore",
    stdout: "inherit",
    stderr: "inherit",
  });
  const status = await run.exited;
  if (status !== 0)
    throw new Error(`"kube-apiserver.sh ${command} ${directory}" ended with status ${status}`);
}

await setup("kube");
await apiserver("build");
try {
  await apiserver("start");
  // Read by test/lab/kube.ts, in the process of the tests.
  process.env["CLUSTERNET_TEST_KUBE"] = directory;
  const counts = await runTests(["test/integration/kubernetes", ...process.argv.slice(2)]);
  console.log(closingLine(counts));
  process.exitCode = isGood(counts) ? 0 : 1;
} finally {
  await apiserver("stop");
}
