/**
 * Pod prefixes from Kubernetes through the compiled executable: what the Curator is told and `lo` gets as a Node's pod
 * networks come, change and go; an API server that is away; kubeconfigs that cannot be used; and the secrets in them.
 *
 * The first half runs against a real kube-apiserver as well (`bun run test:kube`), as the identity of a node.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmod, mkdir, readFile, writeFile } from "node:fs/promises";
import { hostname } from "node:os";
import { join } from "node:path";
import { FakeKubeApi } from "../fakes/kube-api.ts";
import { Agent, type AgentOptions } from "../lab/agent.ts";
import { Kube, nodeName, openDoor, realKube } from "../lab/kube.ts";
import type { Machine } from "../lab/lab.ts";
import { processesOf } from "../lab/remains.ts";
import { sharedLab } from "../lab/shared-lab.ts";
import { freshMachine, soonMs } from "../lab/stage.ts";
import { waitFor } from "../lab/wait.ts";

const shared = sharedLab();

/** Every agent here is a node of its own to the one Curator. */
async function optionsOf(flags: readonly string[]): Promise<AgentOptions> {
  const nodeId = `node-${crypto.randomUUID().slice(0, 8)}`;
  return { curator: shared.curator.address, directory: await shared.lab.directory(), nodeId, flags };
}

/** What the Curator was told of the node, without its external address. */
async function toldOf({ nodeId }: { readonly nodeId?: string }): Promise<readonly (readonly string[])[]> {
  const { announcements } = await shared.curator.call.seen();
  return announcements.filter((each) => each.nodeId === nodeId).map(({ prefixes }) => prefixes.slice(1));
}

/** Addresses on `lo` that are the agent's. */
async function loopback({ machine }: Agent): Promise<readonly string[]> {
  const shown = JSON.parse(await machine.exec(["ip", "-j", "address", "show", "lo"])) as {
    readonly addr_info: readonly { readonly local: string }[];
  }[];
  return (shown[0]?.addr_info ?? [])
    .map(({ local }) => local)
    .filter((each) => !["127.0.0.1", "::1"].includes(each));
}

/** Waits until Curator and `lo` have exactly these; returns how long it took, in milliseconds. */
async function announces(
  agent: Agent,
  prefixes: readonly string[],
  addresses: readonly string[],
  limitMs = soonMs,
): Promise<{ readonly curatorMs: number; readonly loopbackMs: number }> {
  const startMs = performance.now();
  const took = async (what: string, found: () => Promise<readonly string[]>, wanted: readonly string[]) => {
    let last: readonly string[] = [];
    await waitFor(
      async () => {
        last = await found();
        return last.toSorted().join() === wanted.toSorted().join();
      },
      { limitMs, what, detail: () => `${last.join()}\n${agent.process.describe()}` },
    );
    return Math.round(performance.now() - startMs);
  };
  const [curatorMs, loopbackMs] = await Promise.all([
    took(
      `announcement ${prefixes.join()}`,
      async () => (await toldOf(agent)).at(-1) ?? ["nothing"],
      prefixes,
    ),
    took(`addresses ${addresses.join()} on lo`, () => loopback(agent), addresses),
  ]);
  return { curatorMs, loopbackMs };
}

/** Ends it; the Curator is to show it to no later one. */
async function end(agent: Agent): Promise<void> {
  await agent.kill();
  await shared.curator.call.remove(agent.nodeId);
}

/** Waits until exactly problems like these last, in this order. */
async function reports(agent: Agent, ...patterns: readonly RegExp[]): Promise<void> {
  await agent.status(
    ({ problems }) =>
      problems.length === patterns.length &&
      patterns.every((pattern, index) =>
        pattern.test(`${problems[index]?.kind}: ${problems[index]?.message}`),
      ),
    soonMs,
  );
}

describe(realKube === undefined ? "a Kubernetes API" : "a real kube-apiserver", () => {
  let kube: Kube;
  beforeAll(async () => {
    kube = await Kube.create(shared.lab);
  });
  afterAll(() => kube[Symbol.asyncDispose]());

  test("a Node's pod networks appear, change and go: announcement and lo follow, no restart (case 38)", async () => {
    const machine = await freshMachine(shared.lab, "a");
    const kubeconfig = await kube.enter(machine);
    const options = await optionsOf(["--kubeconfig", kubeconfig, "--kubernetes-node", nodeName]);
    const agent = await Agent.start(machine, options);
    const { pid } = agent.process;
    const times: Record<string, Awaited<ReturnType<typeof announces>>> = {};
    const after = async (
      what: string,
      change: () => Promise<void>,
      prefixes: readonly string[],
      addresses: readonly string[],
    ): Promise<void> => {
      await change();
      times[what] = await announces(agent, prefixes, addresses);
    };
    try {
      // Before its Node is there, and while it has no pod networks: the external address alone.
      await announces(agent, [], []);
      await reports(agent, /^source-failed: .*there is no such Node, waiting for it/);
      await after("Node made", () => kube.put(), [], []);
      await reports(agent);
      await after(
        "podCIDRs appear",
        () => kube.put(["10.192.7.0/24", "fd10:c1:0:7::/64"]),
        ["10.192.7.0/24", "fd10:c1:0:7::/64"],
        ["10.192.7.1", "fd10:c1:0:7::1"],
      );
      await after("podCIDRs change", () => kube.put(["10.192.8.0/24"]), ["10.192.8.0/24"], ["10.192.8.1"]);
      await after("Node deleted", () => kube.remove(), [], []);
      await reports(agent, /there is no such Node/);
      await after("Node comes back", () => kube.put(["10.192.8.0/24"]), ["10.192.8.0/24"], ["10.192.8.1"]);
      await reports(agent);
      expect(agent.process.exit).toBeUndefined();
      expect((await agent.status(() => true, soonMs)).agent.pid).toBe(pid);
      if (realKube !== undefined) {
        console.table(times);
        console.log("the Curator saw:", JSON.stringify(await toldOf(agent)));
      }
    } finally {
      await end(agent);
      await kube.remove();
    }
  }, 60_000);

  test("while the API server is away nothing known is lost, over a restart neither, and what it says then counts (case 38)", async () => {
    const machine = await freshMachine(shared.lab, "a");
    const kubeconfig = await kube.enter(machine);
    await kube.put(["10.192.7.0/24"]);
    // By the variable that a pod is given, and a fixed prefix besides.
    const options = await optionsOf(["--kubeconfig", kubeconfig, "--pod-prefix", "10.192.9.0/24"]);
    let agent = await Agent.start(machine, { ...options, env: { NODE_NAME: nodeName } });
    const prefixes = ["10.192.9.0/24", "10.192.7.0/24"];
    const addresses = ["10.192.9.1", "10.192.7.1"];
    try {
      await announces(agent, prefixes, addresses);
      await kube.leave();
      await reports(agent, /^source-failed: Cannot list Kubernetes Node "n1" .*; what it said last is kept$/);
      await announces(agent, prefixes, addresses);

      const before = (await toldOf(agent)).length;
      await agent.kill();
      agent = await agent.restart();
      await reports(agent, /^source-failed: Cannot list .*; what was known before the start is kept$/);
      await announces(agent, prefixes, addresses);
      // At no time was less announced, or taken off lo.
      const since = (await toldOf(agent)).slice(before);
      expect(since.map((each) => each.join())).toEqual([prefixes.join()]);
      expect(agent.process.stderr).not.toMatch(/address del/);

      // What was fixed goes with its flag, and what another Node had is not this one's.
      const restarted = async (node: string): Promise<void> => {
        await agent.kill();
        const flags = ["--kubeconfig", kubeconfig, "--pod-prefix", "10.192.10.0/24"];
        agent = await Agent.start(machine, { ...options, flags, env: { NODE_NAME: node } });
      };
      await restarted("another");
      await announces(agent, ["10.192.10.0/24"], ["10.192.10.1"]);
      await restarted(nodeName);
      await announces(agent, ["10.192.10.0/24", "10.192.7.0/24"], ["10.192.10.1", "10.192.7.1"]);

      await kube.come();
      await reports(agent);
      await kube.put(["10.192.8.0/24"]);
      await announces(agent, ["10.192.10.0/24", "10.192.8.0/24"], ["10.192.10.1", "10.192.8.1"]);
    } finally {
      await end(agent);
      await kube.come();
      await kube.remove();
    }
  }, 60_000);

  test("--once and --dry-run wait for the API server's first answer, and say so when it does not come", async () => {
    const machine = await freshMachine(shared.lab, "a");
    const kubeconfig = await kube.enter(machine);
    await kube.put(["10.192.7.0/24"]);
    const options = await optionsOf(["--kubeconfig", kubeconfig, "--kubernetes-node", nodeName]);
    const once = async (...flags: readonly string[]) => {
      const agent = Agent.spawn(machine, {
        ...options,
        flags: [...(options.flags ?? []), "--once", ...flags],
      });
      const exit = await agent.process.exited;
      return { agent, code: exit.code, said: agent.process.stderr + agent.process.stdout };
    };
    try {
      const dry = await once("--dry-run");
      expect(dry.said).toContain("10.192.7.1/32 dev lo");
      expect([dry.code, await toldOf(dry.agent)]).toEqual([0, []]);
      await kube.leave();
      for (const flags of [
        ["--dry-run", "--timeout", "1"],
        ["--timeout", "2"],
      ]) {
        const { code, said } = await once(...flags);
        expect(said).toMatch(
          /Cannot .*the source of this node's pod prefixes has not answered.*Cannot list Kubernetes Node "n1"/s,
        );
        expect(code).toBe(75);
      }
      await kube.come();
      const done = await once();
      expect(done.code).toBe(0);
      expect((await toldOf(done.agent)).at(-1)).toEqual(["10.192.7.0/24"]);
      await end(done.agent);
    } finally {
      await kube.come();
      await kube.remove();
    }
  }, 60_000);
});

describe("a fake Kubernetes API", () => {
  let api: FakeKubeApi;
  let machine: Machine;
  let directory: string;
  let socket: string;
  /** Where the door on the machine is. */
  const port = 6443;
  const cluster = { server: `https://127.0.0.1:${port}`, "tls-server-name": "localhost" };
  beforeAll(async () => {
    directory = await shared.lab.directory();
    socket = join(directory, "api.sock");
    api = await FakeKubeApi.start({ listen: socket });
    machine = await freshMachine(shared.lab, "a");
    await openDoor(machine, socket, port);
  });
  afterAll(() => api[Symbol.asyncDispose]());

  /** Writes a kubeconfig and returns the flags for it. */
  async function flagsOf(user: Readonly<Record<string, unknown>>): Promise<readonly string[]> {
    const path = join(directory, `config-${crypto.randomUUID().slice(0, 8)}`);
    await writeFile(path, api.kubeconfig(user, cluster));
    return ["--kubeconfig", path, "--kubernetes-node", nodeName];
  }

  /** Writes a kubeconfig with a change, and returns its path. */
  async function config(change: (text: string) => string, user = {}): Promise<string> {
    const [, path = ""] = await flagsOf(user);
    await writeFile(path, change(await readFile(path, "utf8")));
    return path;
  }

  test("of hundreds of pod networks the good ones are announced, and each bad one is one problem", async () => {
    const good = Array.from({ length: 200 }, (_, index) => `10.193.${index}.0/24`);
    const bad = ["10.192.1.0/33", "10.192.1.7/24", "172.16.0.0/24", "10.192.0.0/11", "2001:db8::/64", "::"];
    api.put(nodeName, [...bad, ...good, ...good.slice(0, 5), "172.16.0.0/24"]);
    const options = await optionsOf(await flagsOf(api.clientCertificate(`system:node:${nodeName}`)));
    const agent = await Agent.start(machine, options);
    try {
      await waitFor(async () => (await toldOf(agent)).at(-1)?.length === 200, {
        limitMs: soonMs,
        what: "all good ones",
      });
      expect((await toldOf(agent)).at(-1)).toEqual(good);
      await reports(
        agent,
        /^prefix-malformed: Cannot use pod network of Kubernetes Node "n1": "10\.192\.1\.0\/33": prefix length is "33"/,
        /^prefix-malformed: Cannot use pod network of Kubernetes Node "n1": "::": has no prefix length/,
        /^prefix-malformed: Cannot announce pod prefix 10\.192\.1\.7\/24 .*expected 10\.192\.1\.0\/24/,
        /^prefix-outside: Cannot announce pod prefix 172\.16\.0\.0\/24 /,
        /^prefix-outside: Cannot announce pod prefix 2001:db8::\/64 /,
        /^prefix-too-wide: Cannot announce pod prefix 10\.192\.0\.0\/11 /,
      );
      api.put(nodeName, ["10.192.7.0/24"]);
      await announces(agent, ["10.192.7.0/24"], ["10.192.7.1"], 30_000);
      await reports(agent);
    } finally {
      await end(agent);
    }
  }, 90_000);

  test("credentials and rights that are missing are named, with the rule that gives them, and awaited", async () => {
    // Without a name it is the host's.
    const host = hostname().toLowerCase();
    api.put(host, ["10.192.7.0/24"]);
    const token = join(directory, "token");
    await writeFile(token, "unknown");
    const [flag = "", path = ""] = await flagsOf({ tokenFile: token });
    const agent = await Agent.start(machine, await optionsOf([flag, path]));
    try {
      await reports(
        agent,
        /^source-failed: .*does not accept the credentials, token of ".*\/token" \(401\); hint: /,
      );
      await writeFile(token, api.token("nobody"));
      await reports(
        agent,
        /^source-failed: .*the right to list this Node is missing .*\(403\).*resourceNames: \["[^"]+"\], verbs: \["list", "watch"\]/,
      );
      await writeFile(token, api.token("somebody"));
      await announces(agent, ["10.192.7.0/24"], ["10.192.7.1"]);
      await reports(agent);
    } finally {
      await end(agent);
    }
  }, 60_000);

  test("in-cluster takes the service account of the pod, and the token that rotates in it", async () => {
    api.put(nodeName, ["10.192.7.0/24"]);
    const account = join(directory, "account");
    await mkdir(account);
    await writeFile(join(account, "ca.crt"), api.ca.certificate.toString());
    const first = api.token("pod");
    await writeFile(join(account, "token"), first);
    // A /run of its own, as in a container, with the account where Kubernetes puts it.
    const place = "/run/secrets/kubernetes.io/serviceaccount";
    const prepare = `mount -t tmpfs tmpfs /run && mkdir -p /run/wireguard ${place} && ln -s '${account}'/* ${place} && exec "$@"`;
    // No other agent has left a wireguard-go there, whose socket would be out of sight.
    const container = await freshMachine(shared.lab, "pod");
    await openDoor(container, socket, port);
    const agent = await Agent.start(container, {
      ...(await optionsOf(["--kubeconfig", "in-cluster"])),
      wrapper: ["unshare", "-m", "--propagation", "private", "sh", "-c", prepare, "sh"],
      env: {
        KUBERNETES_SERVICE_HOST: "localhost",
        KUBERNETES_SERVICE_PORT: String(port),
        NODE_NAME: nodeName,
      },
    });
    try {
      await announces(agent, ["10.192.7.0/24"], ["10.192.7.1"]);
      await writeFile(join(account, "token"), api.token("pod-later"));
      api.revoke(first);
      api.put(nodeName, ["10.192.8.0/24"]);
      api.cut();
      await announces(agent, ["10.192.8.0/24"], ["10.192.8.1"]);
      await waitFor(
        () => api.requests.some(({ verb, user }) => verb === "watch" && user === "pod-later"),
        "a watch with the new token",
      );
      await reports(agent);
    } finally {
      await end(agent);
    }
  }, 60_000);

  test("a kubeconfig that cannot be used ends the start with 78, and nothing is made", async () => {
    const expired = api.clientCertificate("x", { notAfter: new Date("2026-02-01T00:00:00Z") });
    const cases: readonly (readonly [kubeconfig: string, says: RegExp])[] = [
      [
        join(directory, "nx"),
        /^Cannot use kubeconfig ".*\/nx": there is no such file\n {2}hint: --kubeconfig says/,
      ],
      [directory, /^Cannot use kubeconfig .*: it is a directory, expected a regular file/],
      [await config(() => "a: ["), /^Cannot use kubeconfig .*: it is not YAML/],
      [
        await config((text) => text.replace('"current-context":"test"', '"current-context":"x"')),
        /context "x", which current-context names, is missing; it has "test"/,
      ],
      [
        await config((text) => text, expired),
        /client-certificate-data of the kubeconfig .*: it expired on Feb {2}1/,
      ],
      [
        await config((text) => text, { tokenFile: "nx-token" }),
        /^Cannot read token ".*\/nx-token" of the kubeconfig .*: there is no such file/,
      ],
      ["in-cluster", /^Cannot use the service account of this pod .*KUBERNETES_SERVICE_HOST/],
    ];
    for (const [kubeconfig, says] of cases) {
      const agent = Agent.spawn(machine, await optionsOf(["--kubeconfig", kubeconfig]));
      expect((await agent.process.exited).code).toBe(78);
      expect(agent.process.stderr.replace(/^.* WARN .*\n/gm, "")).toMatch(says);
      expect(await Bun.file(join(agent.dataDirectory, "private.key")).exists()).toBe(false);
    }
  }, 60_000);

  test("no token, password or key of a kubeconfig, or of its plugin, is in log, status, state or arguments", async () => {
    const plugin = join(directory, "plugin");
    const given = api.token("plugin");
    await writeFile(
      plugin,
      `#!/bin/sh\necho "here is ${given}" >&2\necho '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"${given}"}}'\n`,
    );
    await chmod(plugin, 0o755);
    const failing = join(directory, "failing");
    await mkdir(failing);
    const certificate = api.clientCertificate(`system:node:${nodeName}`);
    const exec = { apiVersion: "client.authentication.k8s.io/v1", command: plugin };
    const users: readonly (readonly [user: Readonly<Record<string, unknown>>, secrets: readonly string[]])[] =
      [
        [{ token: "unknown-token-71" }, ["unknown-token-71"]],
        [{ username: "somebody", password: "password-71" }, ["password-71", btoa("somebody:password-71")]],
        [
          certificate,
          [
            atob(certificate["client-key-data"] ?? "").split("\n")[1] ?? "",
            (certificate["client-key-data"] ?? "").slice(60, 100),
          ],
        ],
        [{ exec }, [given]],
        [{ exec: { ...exec, command: "/bin/sh", args: ["-c", `sh ${plugin}; exit 1`] } }, [given]],
      ];
    api.put(nodeName, ["10.192.7.0/24"]);
    for (const [user, secrets] of users) {
      const options = await optionsOf([...(await flagsOf(user)), "--log-format", "json"]);
      const agent = await Agent.start(machine, options);
      const texts: string[] = [];
      try {
        await agent.status(
          ({ problems, node }) =>
            problems.some(({ kind }) => kind === "source-failed") || node.announced?.length === 2,
          soonMs,
        );
        for (const pid of processesOf(shared.lab.mark)) {
          texts.push(await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => ""));
        }
        texts.push(JSON.stringify(await agent.status(() => true, soonMs)));
        texts.push(await readFile(join(agent.dataDirectory, "clusternet.state"), "utf8").catch(() => ""));
      } finally {
        await end(agent);
      }
      texts.push(agent.process.stderr, agent.process.stdout);
      const all = texts.join("\n");
      expect(all).toContain("clusternet");
      for (const secret of secrets) {
        expect(secret.length).toBeGreaterThan(8);
        expect(all).not.toContain(secret);
      }
    }
  }, 90_000);
});
