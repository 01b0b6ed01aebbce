/**
 * The private key in a run full of failures: nowhere but in the two files that hold it (case 27).
 */
import { afterAll, beforeAll, expect, test } from "bun:test";
import { existsSync, readFileSync, readdirSync, statSync } from "node:fs";
import { chmod, mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { parsePrivateKey } from "../../src/core/key.ts";
import { Agent, executable, podOf, scriptedCurator } from "../lab/agent.ts";
import { newKey } from "../lab/bare-peer.ts";
import { Lab } from "../lab/lab.ts";
import { processesOf } from "../lab/remains.ts";
import { freshMachine, paperNode, soonMs } from "../lab/stage.ts";

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

/** Pieces by which a key is found however it is cut, and in the form in which WireGuard's socket takes it. */
function piecesOf(key: string): readonly string[] {
  const hex = Uint8Array.fromBase64(key).toHex();
  return [key.slice(1, 15), key.slice(15, 29), key.slice(29, 43), hex.slice(0, 24), hex.slice(40, 64)];
}

/**
 * A directory for PATH whose programs write down their own arguments and environment, and whose `wg` at first fails
 * to change anything the way wg(8) does for a damaged file: with the line that holds the key on stderr.
 */
async function leakyPrograms(keyFile: string): Promise<{ readonly path: string; readonly log: string }> {
  const path = await lab.directory();
  const log = join(path, "seen");
  const count = join(path, "count");
  const broken = join(path, "broken");
  for (const name of ["wg", "ip", "wireguard-go"]) {
    const real = Bun.which(name) ?? name;
    const failing = `case "$1" in set|syncconf)
  n=$(($(cat '${count}' 2>/dev/null || echo 0) + 1))
  echo $n >'${count}'
  if [ $n -le 3 ]; then
    key=$(cat '${keyFile}')
    case $n in
      1) line="PrivateKey = $(echo "$key" | sed 's/./*/20')" ;;
      2) line="PrivatKey = $key" ;;
      3) line="PrivateKey = \${key}x" ;;
    esac
    printf '[Interface]\\n%s\\n' "$line" >'${broken}'
    '${real}' setconf clusternet '${broken}'
    rm '${broken}'
    exit 1
  fi ;;
esac
`;
    await writeFile(
      join(path, name),
      `#!/bin/sh\numask 077\ncat /proc/$$/cmdline /proc/$$/environ >>'${log}'\n${name === "wg" ? failing : ""}exec '${real}' "$@"\n`,
    );
    await chmod(join(path, name), 0o755);
  }
  return { path, log };
}

test("the private key is in no log, status, dry run, argument, environment or file that others may read (case 27)", async () => {
  await using curator = await scriptedCurator(lab);
  const machine = await freshMachine(lab, "a");
  const directory = await lab.directory();
  const data = join(directory, "a");
  const keyFile = join(data, "private.key");
  const conf = join(data, "clusternet.conf");
  const key = newKey();
  await mkdir(data, { mode: 0o700 });
  await writeFile(keyFile, `${key.reveal()}\n`, { mode: 0o644 });
  await writeFile(conf, `[Interface]\nPrivatKey = ${key.reveal()}\nListenPort = 7838\n`, { mode: 0o644 });
  const programs = await leakyPrograms(keyFile);
  const options = {
    curator: curator.address,
    directory,
    nodeId: "a",
    pod: podOf(1),
    path: programs.path,
    flags: ["--log-format", "json"],
  };
  const paper = paperNode("b", "198.51.100.1", ["10.192.2.0/24"]);
  await curator.call.put(paper.bytes);
  const texts: Record<string, string> = {};

  const agent = await Agent.start(machine, options);
  await agent.peers((peers) => peers.length === 1, 20_000);
  await agent.status(({ agent: { ready } }) => ready, soonMs);
  // What wg said of its failures came as far as the log.
  expect(agent.process.stderr).toContain("[redacted]");
  for (const pid of processesOf(lab.mark)) {
    for (const file of ["cmdline", "environ"]) {
      texts[`${file} of ${pid}`] = await readFile(`/proc/${pid}/${file}`, "utf8").catch(() => "");
    }
  }
  const call = async (...argv: readonly string[]): Promise<void> => {
    const { stdout, stderr } = await machine.run([executable, ...argv], { path: programs.path });
    texts[argv.join(" ").slice(0, 40)] = stdout + stderr;
  };
  const place = ["--data-dir", data];
  await call("status", ...place);
  await call("status", "--json", ...place);
  await call("pubkey", ...place);
  const dry = Agent.spawn(machine, { ...options, flags: [...options.flags, "--once", "--dry-run"] });
  await dry.process.exited;
  expect(dry.process.stdout).toContain("PrivateKey");
  texts["dry run"] = dry.process.stdout + dry.process.stderr;
  expect(
    parsePrivateKey(/^PrivateKey = (.*)$/m.exec(await readFile(conf, "utf8"))?.[1] ?? "").publicKey,
  ).toBe(key.publicKey);
  const open = readdirSync(data).filter((name) => (statSync(join(data, name)).mode & 0o077) !== 0);
  expect(open).toEqual([]);

  await agent.process.stop();
  texts["log of the agent"] = agent.process.stderr + agent.process.stdout;
  for (const typo of [
    key.reveal().replace(/.{5}$/, "*$&").slice(0, 44),
    `${key.reveal()}x`,
    key.reveal().slice(0, 43),
  ]) {
    await writeFile(keyFile, typo);
    const failed = Agent.spawn(machine, options);
    expect((await failed.process.exited).code).toBe(78);
    texts[`log with key file of ${typo.length}`] = failed.process.stderr + failed.process.stdout;
    await call("status", ...place);
    await call("pubkey", ...place);
  }
  await writeFile(conf, `[Interface]\nPrivatKey = ${key.reveal()}\n`);
  await call("status", "--json", ...place);
  await call("down", ...place);

  expect(existsSync(programs.log)).toBe(true);
  texts["arguments and environment of children"] = readFileSync(programs.log, "utf8");
  expect(texts["arguments and environment of children"]).toContain("syncconf");
  const leaks = Object.entries(texts).filter(([, text]) =>
    piecesOf(key.reveal()).some((piece) => text.includes(piece)),
  );
  expect(leaks.map(([name]) => name)).toEqual([]);
  // Every line of the log is a JSON object.
  for (const line of (texts["log of the agent"] ?? "").trimEnd().split("\n")) JSON.parse(line);
});
