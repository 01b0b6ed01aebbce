/**
 * What commands tell another user than root: what this user may not do, and what to do about it. With the compiled
 * executable, in a copy that everybody may run.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmod, copyFile, mkdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { Status } from "../../src/status.ts";
import { Agent, executable, podOf } from "../lab/agent.ts";
import type { Machine } from "../lab/lab.ts";
import type { ExecResult } from "../lab/namespace.ts";
import { sharedLab } from "../lab/shared-lab.ts";
import { freshMachine, soonMs } from "../lab/stage.ts";

const shared = sharedLab();
const nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];

/** Where everybody may look; the checkout may be closed to others. */
let open = "";
let machine: Machine;
beforeAll(async () => {
  open = await shared.lab.directory();
  await copyFile(executable, join(open, "clusternet"));
  await chmod(join(open, "clusternet"), 0o755);
  await chmod(open, 0o755);
  await chmod(dirname(open), 0o755);
  machine = await freshMachine(shared.lab, "a");
});

/** `clusternet …` as a user who has no rights. */
async function asNobody(...args: readonly string[]): Promise<ExecResult> {
  return await machine.run([...nobody, join(open, "clusternet"), ...args]);
}

/** What it came to, times left out, and the directory that everybody may look into as "OPEN". */
function told({ code, stdout, stderr }: ExecResult): readonly (string | number | undefined)[] {
  const text = `${stdout}${stderr}`.replaceAll(open, "OPEN").replaceAll(/^\S+Z (?=[A-Z])/gm, "");
  return [code, ...text.trimEnd().split("\n")];
}

const asRoot = "  hint: Run this as root, or choose a directory of this user's with";
const asOwner = "  hint: Run this as root, or as the user who owns it";

describe("a directory in which another user may not write, or look", () => {
  beforeAll(async () => {
    await mkdir(join(open, "root"), { mode: 0o755 });
    await mkdir(join(open, "closed"), { mode: 0o700 });
    await mkdir(join(open, "ca"), { mode: 0o755 });
    for (const name of ["ca.pem", "ca-key.pem"]) await writeFile(join(open, "ca", name), "", { mode: 0o600 });
  });

  test.each<{ args: string; want: readonly (string | number)[] }>([
    {
      args: "pki init --ca-dir OPEN/root/ca",
      want: [
        78,
        'Cannot make directory of the cluster CA "OPEN/root/ca": EACCES: permission denied',
        `${asRoot} --ca-dir`,
      ],
    },
    {
      args: "pki init --ca-dir OPEN/root",
      want: [78, 'Cannot write "OPEN/root/ca-key.pem": EACCES: permission denied', `${asRoot} --ca-dir`],
    },
    {
      args: "pki init --ca-dir OPEN/closed",
      want: [78, 'Cannot look into directory "OPEN/closed": EACCES: permission denied', asOwner],
    },
    {
      args: "pki issue b --ca-dir OPEN/closed --out OPEN/root/b",
      want: [78, 'Cannot look into directory "OPEN/closed": EACCES: permission denied', asOwner],
    },
    {
      args: "pki issue b --ca-dir OPEN/ca --out OPEN/root/b",
      want: [78, 'Cannot read cluster CA "OPEN/ca/ca.pem": EACCES: permission denied', asOwner],
    },
    {
      args: "pubkey --data-dir OPEN/root/a",
      want: [
        78,
        'Cannot make data directory "OPEN/root/a": EACCES: permission denied',
        `${asRoot} --data-dir`,
      ],
    },
    {
      args: "pubkey --data-dir OPEN/closed",
      want: [78, 'Cannot use private key "OPEN/closed/private.key": EACCES: permission denied', asOwner],
    },
    {
      args: "curator --insecure --data-dir OPEN/root",
      want: [
        78,
        'Cannot use database "OPEN/root/curator.db": EACCES: permission denied',
        "  hint: Let the user who runs the Curator read, write and search the data directory, and read and write the files in it, and start again: the file was left as it is",
      ],
    },
    {
      args: "curator --insecure --data-dir OPEN/closed",
      want: [78, 'Cannot use data directory "OPEN/closed": EACCES: permission denied', asOwner],
    },
    {
      args: "curator --insecure --store memory --listen 127.0.0.1:80 --data-dir OPEN/root",
      want: [
        78,
        "Cannot listen on 127.0.0.1:80: this user may not use the port",
        "  hint: Run this as root, or choose a port from 1024 on with --listen",
      ],
    },
    {
      args: "curator --insecure --store memory --listen 127.0.0.1:0 --data-dir OPEN/root",
      want: [78, 'Cannot listen on socket "OPEN/root/curator.sock": EACCES: permission denied', asOwner],
    },
    {
      args: "down --data-dir OPEN/closed",
      want: [78, 'Cannot use data directory "OPEN/closed": EACCES: permission denied', asOwner],
    },
    {
      args: "down --data-dir OPEN/closed/a",
      want: [78, 'Cannot use data directory "OPEN/closed/a": EACCES: permission denied', asOwner],
    },
    { args: "down --data-dir OPEN/none", want: [0, ""] },
  ])("$args", async ({ args, want }) => {
    expect(told(await asNobody(...args.replaceAll("OPEN", open).split(" ")))).toEqual([...want]);
  });
});

describe("the mesh of a node", () => {
  let agent: Agent;
  beforeAll(async () => {
    agent = await Agent.start(machine, {
      curator: shared.curator.address,
      directory: open,
      nodeId: "a",
      pod: podOf(1).slice(0, 1),
    });
    await agent.status(({ agent: { ready } }) => ready, soonMs);
  });
  afterAll(async () => await agent.kill());

  test("status says what it may not look at and what to do, and calls nothing absent", async () => {
    const data = agent.dataDirectory;
    const { code, stdout, stderr } = await asNobody("status", "--data-dir", data);
    expect([code, stderr]).toEqual([0, ""]);
    expect(stdout).toContain("interface:   clusternet, unknown: it could not be looked at\n");
    expect(stdout).toContain("agent:       unknown\n");
    expect(stdout).toContain("announced:   unknown: no agent could be asked\n");
    const seen: Status = JSON.parse((await asNobody("status", "--data-dir", data, "--json")).stdout);
    expect([seen.interface.present, seen.agent, seen.node.announced, seen.problems]).toEqual([
      null,
      {
        running: null,
        pid: null,
        startedAt: null,
        ready: false,
        reasons: [`the agent at socket "${data}/clusternet.sock" cannot be asked: permission denied`],
        unhealthy: [],
      },
      null,
      [
        {
          kind: "source-failed",
          nodeId: null,
          message:
            "Cannot look at this node as user 65534: its files and its interface are for root; " +
            `hint: run \`sudo clusternet status --data-dir ${data}\``,
          since: null,
        },
      ],
    ]);
    expect((await asNobody("status", "--data-dir", data, "--check")).code).toBe(3);
  });

  test("down says that it takes root, and leaves the mesh up", async () => {
    await agent.process.stop();
    const { code, stderr } = await asNobody("down", "--data-dir", join(open, "none"));
    expect([code, stderr]).toEqual([
      1,
      expect.stringContaining(
        "WARN  Cannot take the mesh away as user 65534: interface, routes and files are for root; " +
          `hint: run \`sudo clusternet down --data-dir ${join(open, "none")}\`\n`,
      ),
    ]);
    expect((await machine.run(["ip", "link", "show", "clusternet"])).code).toBe(0);
    const root = await machine.run([executable, "down", "--data-dir", agent.dataDirectory]);
    expect([root.code, root.stderr]).toEqual([0, expect.not.stringContaining("as user")]);
  });
});
