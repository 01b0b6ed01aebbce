/**
 * Trust through the compiled executable: credentials made by `pki`, TLS both ways with our own Curator and with a
 * scripted one, impostors, and credentials that cannot be used.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmod, mkdtemp, readdir, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Status } from "../../src/status.ts";
import { node } from "../fakes/curator.ts";
import { Agent, podOf, scriptedCurator, scriptedCuratorOn } from "../lab/agent.ts";
import { executable } from "../lab/executable.ts";
import { Lab } from "../lab/lab.ts";
import { OwnCluster } from "../lab/own-cluster.ts";
import { freshMachine, paperNode, soonMs } from "../lab/stage.ts";
import { LabTrust } from "../lab/trust.ts";

let lab: Lab;
beforeAll(async () => {
  lab = await Lab.create();
});
afterAll(() => lab.dispose());

/** What ends by itself: "STATUS stderr". */
async function ended(args: readonly string[]): Promise<string> {
  const child = Bun.spawn([executable, ...args], {
    env: { PATH: process.env["PATH"] ?? "" },
    stdout: "ignore",
    stderr: "pipe",
    timeout: 30_000,
  });
  const [stderr, status] = await Promise.all([child.stderr.text(), child.exited]);
  return `${status} ${stderr.trimEnd()}`;
}

describe("with our own Curator", () => {
  test("two nodes form a mesh, one of them is removed and says so, and no key is in any log", async () => {
    await using cluster = await OwnCluster.create(lab, { flags: ["--curator-id", "curator"] });
    const { curator, a, b } = cluster;
    for (const [agent, other] of [
      [a, "b"],
      [b, "a"],
    ] as const) {
      const status = await agent.status(
        ({ peers, curator: { fullPicture } }) => fullPicture && peers.some(({ id }) => id === other),
        2 * soonMs,
      );
      expect([status.node.id, status.curator.address, status.peers.map(({ id }) => id)]).toEqual([
        agent.nodeId,
        curator.address,
        [other],
      ]);
    }
    // The first address of a pod prefix is on its node's loopback.
    await a.machine.reach("10.192.2.1", { limitMs: soonMs });
    await b.machine.reach("10.192.1.1", { limitMs: soonMs });

    expect(
      (await curator.node("list"))
        .split("\n")
        .slice(1, 3)
        .map((line) => line.split(" ")[0]),
    ).toEqual(["a", "b"]);
    await curator.node("remove", "b");
    await a.status(({ peers }) => peers.length === 0, soonMs);
    const removed = await b.status(
      ({ problems }) => problems.some(({ message }) => message.includes("NOT_FOUND")),
      2 * soonMs,
    );
    // The mesh of a node that was removed stays as it was.
    expect(removed.peers.map(({ id }) => id)).toEqual(["a"]);

    const logs = [curator.process, a.process, b.process].map((each) => each.stdout + each.stderr).join("");
    expect(logs.length).toBeGreaterThan(1_000);
    for (const dataDirectory of [curator.dataDirectory, a.dataDirectory, b.dataDirectory]) {
      const pem = await readFile(join(dataDirectory, "credentials/cert-key.pem"), "utf8");
      expect(logs).not.toContain(pem.split("\n")[1] ?? "no key");
    }
  }, 120_000);
});

describe("with a scripted Curator", () => {
  test("an impostor is refused and reported while the mesh stays, and the Curator that comes back is followed", async () => {
    const trust = await LabTrust.create(lab);
    const foreign = await LabTrust.create(lab);
    const directory = await lab.directory();
    const credentials = await trust.issue("curator", join(directory, "curator"));
    const name = `tls-${crypto.randomUUID().slice(0, 4)}`;
    const peer = paperNode("b", "198.51.100.2", ["10.192.2.0/24"]);

    const first = await scriptedCurator(lab, name, credentials);
    const a = await Agent.start(await freshMachine(lab, "a"), {
      curator: first.address,
      directory,
      nodeId: "a",
      trust,
      pod: podOf(1).slice(0, 1),
    });
    try {
      await first.call.put(node({ id: "a" }));
      await first.call.put(peer.bytes);
      await a.peers((peers) => peers.length === 1, soonMs);
      // It has counted the certificates, and taken the node from the one that there was.
      expect((await first.call.seen()).announcements.at(-1)).toMatchObject({ nodeId: "a", code: 0 });
      await first[Symbol.asyncDispose]();

      await using impostor = await scriptedCuratorOn(
        first.machine,
        await foreign.issue("curator", join(directory, "foreign")),
      );
      const status = await a.status(
        ({ problems }) => problems.some(({ kind }) => kind === "curator-untrusted"),
        4 * soonMs,
      );
      expect(status.problems.find(({ kind }) => kind === "curator-untrusted")).toMatchObject({
        nodeId: null,
        message: expect.stringMatching(
          /^Cannot trust Curator "192\.0\.2\.\d+:7835": its certificate is signed by another CA of the same name, expected the cluster CA "CN=clusternet cluster CA" of /,
        ),
      });
      expect([status.curator.state, status.peers.map(({ id }) => id)]).toEqual(["connecting", ["b"]]);
      const { streams, announcements, statusReports } = await impostor.call.seen();
      expect([streams, announcements, statusReports]).toEqual([[], [], []]);
      await impostor[Symbol.asyncDispose]();

      await using again = await scriptedCuratorOn(first.machine, credentials);
      await again.call.backlog(node({ id: "a" }), peer.bytes);
      await a.status(
        ({ problems, curator }) =>
          curator.state === "connected" && !problems.some(({ kind }) => kind === "curator-untrusted"),
        4 * soonMs,
      );
    } finally {
      await a.kill();
    }
  }, 180_000);
});

/** What is said of files whose mode lets others read a key. */
function modes(problems: Status["problems"]): readonly string[] {
  return problems.filter(({ kind }) => kind === "key-mode").map(({ message }) => message);
}

test("a key of the credentials that others may read is a problem as long as they may", async () => {
  const trust = await LabTrust.create(lab);
  const directory = await lab.directory();
  const { key } = await trust.issue("a", join(directory, "a"));
  await chmod(key, 0o640);
  const a = await Agent.start(await freshMachine(lab, "a"), {
    curator: "192.0.2.250",
    directory,
    nodeId: "a",
    trust,
  });
  try {
    const { problems } = await a.status((status) => modes(status.problems).length > 0, soonMs);
    expect(modes(problems)).toEqual([expect.stringContaining(`"${key}" has mode 0640, expected 0600`)]);
    const { stdout } = await a.machine.run([executable, "status", "--data-dir", a.dataDirectory]);
    expect(stdout).toContain(`"${key}" has mode 0640`);
    // It is not ours to change.
    expect((await stat(key)).mode & 0o777).toBe(0o640);
    await chmod(key, 0o600);
    await a.status((status) => modes(status.problems).length === 0, soonMs);
    expect(a.process.stderr).toContain("No longer: Key of the node certificate");
  } finally {
    await a.kill();
  }
}, 60_000);

describe("credentials that cannot be used end the program with 78 before it touches anything:", () => {
  let directory: string;
  let trust: LabTrust;
  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), "clusternet-trust-"));
    trust = await LabTrust.create(lab);
  });
  afterAll(() => rm(directory, { recursive: true, force: true }));

  const hint =
    "\n  hint: `clusternet pki issue` makes a node's three files; --ca, --cert and --key say where they are";

  test.each(["run", "curator"])("none at all, %s", async (command) => {
    const data = join(directory, `none-${command}`);
    const flags = command === "run" ? ["--curator", "127.0.0.1"] : [];
    expect(await ended([command, ...flags, "--data-dir", data])).toBe(
      `78 Cannot read cluster CA "${data}/credentials/ca.pem": there is no such file${hint}`,
    );
    expect(await readdir(directory)).not.toContain(`none-${command}`);
  });

  test("a node ID that is not the certificate's", async () => {
    const data = join(directory, "a");
    await trust.issue("a", data);
    const flags = ["--curator", "127.0.0.1", "--data-dir", data, "--node-id", "b"];
    expect(await ended(["run", ...flags])).toBe(
      `78 Cannot use --node-id "b": the certificate "${data}/credentials/cert.pem" is that of node "a"\n` +
        "  hint: Leave --node-id out: the certificate names the node",
    );
    expect(await readdir(data)).toEqual(["credentials"]);
  });

  test("the key of another node, and a CA of another cluster", async () => {
    const one = await trust.issue("one", join(directory, "one"));
    const two = await trust.issue("two", join(directory, "two"));
    const other = await (await LabTrust.create(lab)).issue("one", join(directory, "other"));
    const data = join(directory, "data");
    const run = (files: typeof one): Promise<string> =>
      ended([
        "run",
        "--curator=127.0.0.1",
        `--data-dir=${data}`,
        `--ca=${files.ca}`,
        `--cert=${files.cert}`,
        `--key=${files.key}`,
      ]);
    expect([await run({ ...one, key: two.key }), await run({ ...one, ca: other.ca })]).toEqual([
      expect.stringContaining(
        `78 Cannot use key of the node certificate "${two.key}": it is not the key of "${one.cert}"\n`,
      ),
      expect.stringContaining(
        `78 Cannot use node certificate "${one.cert}": its certificate is signed by another CA`,
      ),
    ]);
  });
});

/** What the files of a directory hold, by name. */
async function texts(directory: string): Promise<readonly string[]> {
  const names = (await readdir(directory)).toSorted();
  return await Promise.all(names.map((name) => readFile(join(directory, name), "utf8")));
}

test("pki makes private keys for their owner alone, whatever the umask, and never overwrites", async () => {
  const directory = await mkdtemp(join(tmpdir(), "clusternet-pki-"));
  try {
    await chmod(directory, 0o755);
    const [ca, out] = [join(directory, "ca"), join(directory, "out")];
    const script =
      'umask 0; "$1" pki init --ca-dir "$2" && exec "$1" pki issue web-1 --ca-dir "$2" --out "$3"';
    const made = Bun.spawn(["sh", "-c", script, "sh", executable, ca, out], {
      stdout: "pipe",
      stderr: "pipe",
    });
    expect([await made.exited, await made.stderr.text()]).toEqual([0, ""]);
    const modes = await Promise.all(
      [join(ca, "ca-key.pem"), join(out, "cert-key.pem"), join(out, "cert.pem"), ca, out].map(
        async (path) => (await stat(path)).mode & 0o777,
      ),
    );
    expect(modes).toEqual([0o600, 0o600, 0o644, 0o700, 0o700]);
    const before = await texts(ca);
    expect(await ended(["pki", "init", "--ca-dir", ca])).toStartWith("78 Cannot make cluster CA in ");
    expect(await ended(["pki", "issue", "web-2", "--ca-dir", ca, "--out", out])).toStartWith(
      "78 Cannot make credentials in ",
    );
    expect(await texts(ca)).toEqual(before);
  } finally {
    await rm(directory, { recursive: true, force: true });
  }
});
