/** The pod networks of a Node followed: stories against an API server that does everything to be misunderstood. */
import { afterEach, beforeEach, describe, expect, spyOn, test } from "bun:test";
import { chmod, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { kubernetesPodNetwork, type KubernetesPodNetwork } from "../../src/kubernetes/node-source.ts";
import { Prefixes } from "../../src/prefixes.ts";
import { silentLogger } from "../../src/log.ts";
import { FakeClock } from "../fakes/clock.ts";
import { FakeKubeApi, type KubeAnswer } from "../fakes/kube-api.ts";
import { failure } from "../host/temporary.ts";
import { waitFor } from "../lab/wait.ts";

const one = ["10.192.1.0/24"];
const two = ["10.192.2.0/24", "fd00:192:0:2::/64"];

let api: FakeKubeApi;
let directory: string;
let clock: FakeClock;
let stop: AbortController;
let running: Promise<void> | undefined;
let warnings: string[];
let errors: string[];
let redacted: string[];

beforeEach(async () => {
  api = await FakeKubeApi.start();
  directory = await mkdtemp(join(tmpdir(), "clusternet-kube-"));
  clock = new FakeClock();
  // No wait at all between two tries, unless a test is about the waits.
  clock.nextRandom = 0;
  stop = new AbortController();
  warnings = [];
  errors = [];
  redacted = [];
});
afterEach(async () => {
  stop.abort();
  await running;
  running = undefined;
  await api[Symbol.asyncDispose]();
  await rm(directory, { recursive: true });
  // What it has begun to wait for ends with it.
  expect(clock.sleeping).toBe(0);
});

const config = (): string => join(directory, "config");

/** Starts the source of Node n1; as that node's own identity, unless `user` is another. */
async function start(
  options: { readonly user?: Readonly<Record<string, unknown>>; readonly fixed?: readonly string[] } = {},
): Promise<KubernetesPodNetwork> {
  await writeFile(config(), api.kubeconfig(options.user ?? api.clientCertificate("system:node:n1")));
  const source = await kubernetesPodNetwork({
    kubeconfig: config(),
    node: "n1",
    clock,
    environment: { PATH: process.env["PATH"] },
    log: {
      ...silentLogger,
      warn: (message) => void warnings.push(message),
      redact: (secret) => void redacted.push(secret),
      error: (message, fields) => void errors.push(`${message}: ${fields?.["error"]} ${fields?.["at"]}`),
    },
    ...(options.fixed === undefined ? {} : { fixed: new Prefixes(options.fixed) }),
  });
  running = source.run(stop.signal);
  return source;
}

/** Waits until the source gives these prefixes, and has answered. */
async function gives(source: KubernetesPodNetwork, wanted: readonly string[]): Promise<void> {
  const text = (): string => Array.from(source.prefixes.get(), (each) => each.text).join(" ");
  await waitFor(() => source.state.get().answered && text() === wanted.join(" "), {
    limitMs: 5_000,
    what: `prefixes ${wanted.join(" ")}`,
    detail: () => `${text()}; ${JSON.stringify(source.state.get().problems)}`,
  });
}

/** Waits until its problems are as these patterns, one each. */
async function reports(source: KubernetesPodNetwork, ...patterns: readonly RegExp[]): Promise<void> {
  const messages = (): readonly string[] => source.state.get().problems.map(({ message }) => message);
  await waitFor(
    () =>
      messages().length === patterns.length &&
      patterns.every((pattern, index) => pattern.test(messages()[index] ?? "")),
    { limitMs: 5_000, what: `problems ${patterns.join(" ")}`, detail: () => messages().join("\n") },
  );
}

/** How long it has waited between two tries, each time; the limits of the requests are longer. */
const waits = (): readonly number[] => clock.sleeps.filter((ms) => ms < 20_000).map(Math.round);
const backedOff = (times: number): Promise<boolean> => waitFor(() => waits().length === times, "a wait");

const watched = (): Promise<boolean> => waitFor(() => api.watching === 1, "a watch");

/** The answer to a list in which Node n1 has these pod networks. */
function list(podCIDRs: readonly string[]): KubeAnswer {
  const metadata = { name: "n1", resourceVersion: "101" };
  const items = [{ metadata, spec: { podCIDRs } }];
  return { status: 200, body: JSON.stringify({ kind: "NodeList", metadata, items }) };
}

describe("kubernetesPodNetwork()", () => {
  test("waits for the Node, takes what it gets, follows each change and lets go when it is deleted", async () => {
    const source = await start();
    expect(source.state.get()).toEqual({
      answered: false,
      problems: [],
      source: "Kubernetes Node n1",
      given: [],
    });
    await gives(source, []);
    await reports(
      source,
      /^Cannot take pod networks of Kubernetes Node "n1": there is no such Node, waiting for it; --kubernetes-node says/,
    );
    await watched();
    api.put("n1");
    await reports(source);
    await gives(source, []);
    api.put("n1", [], "10.192.1.0/24");
    await gives(source, one);
    api.put("n1", two, two[0]);
    await gives(source, two);
    api.put("n1", []);
    await gives(source, []);
    api.put("n1", one);
    await gives(source, one);
    api.put("n2", two);
    api.remove("n1");
    await gives(source, []);
    await reports(source, /there is no such Node/);
    api.put("n1", two);
    await gives(source, two);
    await reports(source);
    // One list and one watch was all it took, as the Node authorizer wants them.
    expect(
      api.requests.map(({ verb, user, fieldSelector, bookmarks }) => [verb, user, fieldSelector, bookmarks]),
    ).toEqual([
      ["list", "system:node:n1", "metadata.name=n1", false],
      ["watch", "system:node:n1", "metadata.name=n1", true],
    ]);
  });

  test("gives the good ones among bad ones, and what is fixed before them", async () => {
    api.put("n1", ["10.192.1.0/33", "10.192.9.0/24", ...one, ...one, 7]);
    const source = await start({ fixed: ["10.192.9.0/24", "10.192.8.0/24"] });
    await gives(source, ["10.192.9.0/24", "10.192.8.0/24", ...one]);
    await reports(
      source,
      /Node "n1": "10\.192\.1\.0\/33": prefix length/,
      /Node "n1": "7": has no prefix length/,
    );
    expect(source.state.get().problems.map(({ kind }) => kind)).toEqual([
      "prefix-malformed",
      "prefix-malformed",
    ]);
    // What is fixed is no gift of the Node, unless it gives the same.
    expect(source.state.get().given?.map(({ text }) => text)).toEqual(["10.192.9.0/24", ...one]);
    api.put("n1", ["10.192.8.0/24"]);
    await gives(source, ["10.192.9.0/24", "10.192.8.0/24"]);
    await reports(source);
    expect(source.state.get().given?.map(({ text }) => text)).toEqual(["10.192.8.0/24"]);
  });

  test("gives what is fixed before it has an answer", async () => {
    await api.pause();
    await writeFile(config(), "");
    api = await FakeKubeApi.start();
    api.always = { status: 503 };
    const source = await start({ fixed: one });
    await reports(source, /it answers 503; what was known before the start is kept$/);
    expect([source.prefixes.get().toString(), source.state.get().answered]).toEqual([one.join(), false]);
    api.put("n1", two);
    api.always = undefined;
    await gives(source, [...one, ...two]);
    await reports(source);
  });

  test("keeps what it knows while the API is away, and takes what has changed meanwhile", async () => {
    api.put("n1", one);
    const source = await start();
    await gives(source, one);
    await watched();
    const { port } = api;
    await api.pause();
    await reports(
      source,
      /^Cannot list Kubernetes Node "n1" at https:\/\/localhost:\d+: connection refused; what it said last is kept$/,
    );
    await gives(source, one);
    api.put("n1", two);
    await api.resume(port);
    await gives(source, two);
    await reports(source);
  });

  test("says nothing of a watch that was cut, in mid line or not, nor of a version that is too old", async () => {
    api.put("n1", one);
    const source = await start();
    const seen: number[] = [];
    const watching = (async () => {
      for await (const { problems } of source.state.watch(stop.signal)) seen.push(problems.length);
    })();
    for (const end of [
      () => api.cut(),
      () => api.cut('{"type":"MOD'),
      () => api.send("nonsense\n"),
      () => api.compact(),
    ]) {
      await watched();
      const before = api.requests.length;
      // What happened before, so that a stream that lived is told from one that never did.
      api.bookmark();
      end();
      if (end.toString().includes("compact")) api.endWatches();
      await waitFor(() => api.requests.slice(before).some(({ verb }) => verb === "list"), "another list");
    }
    api.put("n1", two);
    await gives(source, two);
    stop.abort();
    await watching;
    expect(Math.max(...seen)).toBe(0);
  });

  test("opens the next watch where the last one ended: at what a bookmark or a change said last", async () => {
    api.put("n1", one);
    const source = await start();
    await watched();
    await clock.advance(5_000);
    api.endWatches();
    await waitFor(() => api.requests.length === 3, "another watch");
    await watched();
    api.bookmark();
    await clock.advance(5_000);
    api.endWatches();
    await waitFor(() => api.requests.length === 4, "another watch");
    await watched();
    api.put("n1", two);
    await gives(source, two);
    api.endWatches();
    await waitFor(() => api.requests.length === 5, "another watch");
    expect(api.requests.map(({ verb, resourceVersion }) => [verb, resourceVersion])).toEqual([
      ["list", undefined],
      ["watch", "101"],
      ["watch", "101"],
      ["watch", "102"],
      ["watch", "103"],
    ]);
    expect(api.requests[1]?.timeoutSeconds).toBe(90);
  });

  test("finds a stream that has fallen silent, and lists anew", async () => {
    const source = await start();
    await watched();
    // What comes by the watch shows that its answer is here, before which another time limit holds.
    api.put("n1", one);
    await gives(source, one);
    api.silent = true;
    await clock.advance(99_999);
    expect(api.watching).toBe(1);
    await clock.advance(1);
    await waitFor(() => api.requests.length === 3, "another list");
    // Nobody answers that either, but a wait of 30 s is no news yet.
    await reports(source);
    await clock.advance(30_000);
    await reports(source, /no answer for 30 s; what it said last is kept$/);
    api.silent = false;
    api.put("n1", two);
    await clock.advance(30_000);
    await gives(source, two);
    await reports(source);
  });

  test("reports a watch that is refused though the list is not, and takes what the lists say", async () => {
    api.put("n1", one);
    const refuse = { status: 403, body: JSON.stringify({ message: "no" }) };
    const { answers } = api;
    answers.push(list(one), refuse, list(two), refuse, list(two), { ...refuse, status: 503 });
    clock.nextRandom = 0.999;
    const source = await start();
    await gives(source, one);
    await reports(
      source,
      /^Cannot watch Kubernetes Node "n1" .*the right to watch this Node is missing.*verbs: \["list", "watch"\]/,
    );
    await backedOff(1);
    await clock.advance(500);
    await gives(source, two);
    await backedOff(2);
    await clock.advance(1_000);
    await reports(source, /^Cannot watch .* it answers 503/);
    await backedOff(3);
    await clock.advance(2_000);
    await reports(source);
    await watched();
  });

  test("tries again after 0.5 s doubling to 15 s, and quickly again after it worked", async () => {
    api.put("n1", one);
    clock.nextRandom = 0.999;
    api.always = { status: 500 };
    const source = await start();
    for (let tries = 1; tries <= 7; tries++) {
      await backedOff(tries);
      if (tries === 7) api.always = undefined;
      await clock.advance(15_000);
    }
    expect(waits()).toEqual([500, 999, 1998, 3996, 7992, 14985, 14985]);
    await gives(source, one);
    await watched();
    await clock.advance(5_000);
    const { length } = waits();
    api.cut();
    await waitFor(() => waits().length > length, "a wait");
    expect(waits().at(-1)).toBe(500);
    await clock.advance(500);
    await watched();
  });

  test("reports what ends every watch as soon as it is open, and does not hurry", async () => {
    api.put("n1", one);
    clock.nextRandom = 0.999;
    const source = await start();
    for (let tries = 1; tries <= 3; tries++) {
      await reports(source);
      await watched();
      api.endWatches();
      await backedOff(tries);
      if (tries < 3) await clock.advance(2_000);
    }
    await reports(
      source,
      /^Cannot watch Kubernetes Node "n1": the stream ends as soon as it is open, expected it to last 120 s; what it said last is kept$/,
    );
    expect(waits()).toEqual([500, 999, 1998]);
    await clock.advance(2_000);
    await watched();
    await reports(source, /as soon as it is open/);
    api.put("n1", two);
    await gives(source, two);
    await reports(source);
  });

  test.each([
    {
      end: "ends it as agreed",
      endIt: () => api.endWatches(),
      requests: ["list", "watch", "watch", "watch", "watch"],
      afterwards: [],
    },
    {
      end: "cuts it",
      endIt: () => api.cut(),
      requests: ["list", "watch", "list", "watch", "list", "watch", "list", "watch"],
      afterwards: [500],
    },
  ])(
    "does not hurry when something says a word on every watch and $end",
    async ({ endIt, requests, afterwards }) => {
      api.put("n1", one);
      clock.nextRandom = 0.999;
      const source = await start();
      for (let tries = 1; tries <= 3; tries++) {
        await watched();
        api.put("n1", [`10.192.${tries}.0/24`]);
        await gives(source, [`10.192.${tries}.0/24`]);
        endIt();
        await backedOff(tries);
        await clock.advance(tries === 3 ? 1_998 : 999);
      }
      await watched();
      expect(waits()).toEqual([500, 999, 1998]);
      expect(api.requests.map(({ verb }) => verb)).toEqual([...requests]);
      // What it said was news all the same, and one that lasts makes the next one quick again.
      await reports(source);
      await clock.advance(5_000);
      endIt();
      await waitFor(() => api.requests.length > requests.length || waits().length > 3, "another try");
      expect(waits().slice(3)).toEqual([...afterwards]);
    },
  );

  test("takes a token that rotates in its file, and says which one is refused", async () => {
    api.put("n1", one);
    const old = api.token("alice");
    await writeFile(join(directory, "token"), old);
    const source = await start({ user: { tokenFile: "token" } });
    await gives(source, one);
    await watched();
    api.revoke(old);
    api.cut();
    await reports(source, /does not accept the credentials, token of ".*\/token" \(401\)/);
    await gives(source, one);
    await writeFile(join(directory, "token"), api.token("bob"));
    await reports(source);
    await watched();
    expect(api.requests.at(-1)?.user).toBe("bob");
    // Neither is in any line of the log, whoever writes it.
    expect(redacted).toEqual([old, (await Bun.file(join(directory, "token")).text()).trim()]);
  });

  test("asks an exec plugin again when what it gave is refused", async () => {
    api.put("n1", one);
    const tokens = [api.token("alice"), api.token("bob")] as const;
    const plugin = join(directory, "plugin");
    await writeFile(
      plugin,
      `#!/bin/sh
read -r token <'${directory}/token'
echo '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"'$token'"}}'
`,
    );
    await chmod(plugin, 0o755);
    await writeFile(join(directory, "token"), `${tokens[0]}\n`);
    const exec = { apiVersion: "client.authentication.k8s.io/v1", command: "./plugin" };
    const source = await start({ user: { exec } });
    await gives(source, one);
    await watched();
    await writeFile(join(directory, "token"), `${tokens[1]}\n`);
    api.revoke(tokens[0]);
    api.put("n1", two);
    api.cut();
    await gives(source, two);
    await reports(source);
    await watched();
    expect(api.requests.map(({ user }) => user)).toEqual(["alice", "alice", undefined, "bob", "bob"]);
  });

  test("goes on with what it knows when the kubeconfig is replaced by a bad one, until it is good again", async () => {
    api.put("n1", one);
    const source = await start();
    await gives(source, one);
    await watched();
    const good = await Bun.file(config()).text();
    await writeFile(config(), "a: [");
    api.cut();
    await reports(
      source,
      /^Cannot use kubeconfig ".*\/config": it is not YAML \(Unexpected token\); hint: .*; what it said last is kept$/,
    );
    await rm(config());
    await reports(
      source,
      /^Cannot use kubeconfig ".*\/config": there is no such file; hint: .*; what it said last is kept$/,
    );
    await writeFile(config(), good);
    await reports(source);
    await gives(source, one);
  });

  test("goes on with a client certificate that has no subject", async () => {
    api.put("n1", one);
    const source = await start({ user: { token: api.token("alice") } });
    await gives(source, one);
    await watched();
    await writeFile(config(), api.kubeconfig(api.clientCertificate("", { dnsName: "n1.example" })));
    api.cut();
    // The API server, which knows users by the subject, is the one to refuse it.
    await reports(source, /does not accept the credentials, client certificate "DNS:n1\.example" \(401\)/);
    await writeFile(config(), api.kubeconfig({ token: api.token("bob") }));
    await reports(source);
    await watched();
  });

  test("an error that nobody has foreseen is reported without what it quotes, and costs nothing but news", async () => {
    api.put("n1", one);
    const source = await start();
    await gives(source, one);
    await watched();
    // Stands for a library that reads what others wrote, and breaks on it.
    const broken = spyOn(clock, "wallTime").mockImplementation(() => {
      throw new TypeError("cannot read SECRET");
    });
    api.cut();
    await reports(
      source,
      /^Cannot follow Kubernetes Node "n1": unexpected TypeError, please report it with what the log says of it; what it said last is kept$/,
    );
    await gives(source, one);
    expect(errors).toHaveLength(1);
    expect(errors[0]).toMatch(/^Unexpected error while following .*: TypeError at .*node-source\.test\.ts/);
    expect(errors.join()).not.toContain("SECRET");
    broken.mockRestore();
    api.put("n1", two);
    await gives(source, two);
    await reports(source);
  });

  test("says the same only once: no new value, whatever else of the Node changes", async () => {
    api.put("n1", one);
    const source = await start();
    await gives(source, one);
    await watched();
    const values: string[] = [];
    const watching = (async () => {
      for await (const prefixes of source.prefixes.watch(stop.signal)) values.push(prefixes.toString());
    })();
    for (let times = 0; times < 20; times++) api.put("n1", one, times % 2 === 0 ? one[0] : undefined);
    api.put("n1", two);
    await gives(source, two);
    stop.abort();
    await watching;
    expect(values).toEqual([one.join(), two.join(", ")]);
  });

  test.each(["", "N1", "-n", "n1/../n2", "a".repeat(254), "n1,metadata.name=n2", "n 1", "ä"])(
    "refuses %j as the name of a Node with exit 64",
    async (node) => {
      const found = await failure(() => kubernetesPodNetwork({ kubeconfig: "/nowhere", node }));
      expect(found.exit).toBe(64);
      expect(found.message).toEndWith(
        "expected 1 to 253 of a-z, 0-9, . and -, the first and last a letter or digit",
      );
    },
  );

  test("refuses a kubeconfig that cannot be used before it runs, and warns of one that checks nothing", async () => {
    const kubeconfig = join(directory, "nx");
    expect((await failure(() => kubernetesPodNetwork({ kubeconfig, node: "n1" }))).exit).toBe(78);
    await writeFile(
      config(),
      api.kubeconfig({}, { "certificate-authority-data": "", "insecure-skip-tls-verify": true }),
    );
    await kubernetesPodNetwork({
      kubeconfig: config(),
      node: "n1",
      log: { ...silentLogger, warn: (message) => void warnings.push(message) },
    });
    expect(warnings).toEqual([
      `insecure-skip-tls-verify in kubeconfig "${config()}": whoever can answer in place of ${api.url} decides about this node's pod prefixes, and gets its credentials`,
    ]);
  });
});
