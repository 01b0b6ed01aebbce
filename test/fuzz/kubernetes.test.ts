/**
 * What Kubernetes and its tools hand to an agent, damaged: kubeconfig, the answers of an API server, what an exec plugin
 * writes. Everything in them that could be a secret is in no message.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as fc from "fast-check";
import { systemClock } from "../../src/async.ts";
import type { ApiConnection } from "../../src/kubernetes/access.ts";
import { listNode, watchNode } from "../../src/kubernetes/api.ts";
import { runPlugin } from "../../src/kubernetes/exec-plugin.ts";
import { parseKubeconfig } from "../../src/kubernetes/kubeconfig.ts";
import { decodePodCidrs } from "../../src/kubernetes/node-object.ts";
import { damagedJson, damagedText, reshapedJson } from "./damage.ts";
import { httpAnswer, RawServer } from "../fakes/raw-server.ts";
import { holdToIt, secret } from "./verdict.ts";

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "clusternet-fuzz-"));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

/** As objects, which YAML takes as JSON too: a secret stays where it is a secret, or becomes a value of another form. */
const kubeconfigs = [
  {
    cluster: {
      server: "https://192.0.2.1:6443",
      "certificate-authority-data": btoa("CA"),
      "proxy-url": `http://proxy:${secret}@192.0.2.3:3128`,
    },
    user: { token: secret, tokenFile: "token" },
  },
  { cluster: { server: `https://admin:${secret}@k.example` }, user: { username: "u", password: secret } },
  {
    cluster: { server: `https://:${secret}@k.example`, "insecure-skip-tls-verify": true },
    user: { "client-certificate-data": btoa("cert"), "client-key-data": secret },
  },
  {
    cluster: {
      server: "https://k.example",
      extensions: [{ name: "client.authentication.k8s.io/exec", extension: { password: secret } }],
    },
    user: {
      exec: {
        apiVersion: "client.authentication.k8s.io/v1",
        command: "get-token",
        args: [secret],
        env: [{ name: "A", value: secret }],
        installHint: "apt install it",
        interactiveMode: "Never",
        provideClusterInfo: true,
      },
    },
  },
].map(({ cluster, user }) =>
  JSON.stringify({
    apiVersion: "v1",
    "current-context": "c",
    contexts: [{ name: "c", context: { cluster: "k", user: "u" } }],
    clusters: [{ name: "k", cluster }],
    users: [{ name: "u", user }],
  }),
);
/** Without a secret: what is cut out of its place could be any word. */
const yaml = `current-context: &c c
contexts: [{name: *c, context: {cluster: k, user: u}}]
clusters:
- name: k
  cluster: &k {server: "https://k.example", insecure-skip-tls-verify: yes}
- {name: l, cluster: {<<: *k, server: !!str x}}
users:
- name: u
  user:
    token: |
      abc
`;

test("kubeconfig", async () => {
  await holdToIt(fc.oneof(reshapedJson(kubeconfigs), damagedText([yaml])), (text) => {
    const { server, origin } = parseKubeconfig(text, "/etc/kube/config");
    expect(server).toMatch(/^https?:\/\/[^@]+$/);
    return { message: `${origin} ${server}` };
  });
});

const node = (podCIDRs: readonly unknown[]): object => ({
  kind: "Node",
  metadata: { name: "n1", resourceVersion: "7" },
  spec: { podCIDR: podCIDRs[0], podCIDRs },
});
const list = JSON.stringify({
  kind: "NodeList",
  metadata: { resourceVersion: "7" },
  items: [node(["10.192.1.0/24", "fd10::/64"])],
});
const watched = [
  { type: "ADDED", object: node(["10.192.1.0/24"]) },
  { type: "BOOKMARK", object: { metadata: { resourceVersion: "8" } } },
  { type: "ERROR", object: { kind: "Status", code: 410, reason: "Expired", message: "too old" } },
].map((event) => JSON.stringify(event));
// Only with its texts whole, as below: what was cut out of a token is a word like any other.
const tooOld = JSON.stringify({
  type: "ERROR",
  object: { kind: "Status", code: 410, reason: "Expired", message: `too old for ${secret}` },
});
const refusal = JSON.stringify({ kind: "Status", code: 403, reason: "Forbidden", message: `no ${secret}` });

describe("an API server that answers anything at all:", () => {
  let server: RawServer;
  let connection: ApiConnection;
  beforeAll(async () => {
    server = await RawServer.listen("tcp");
    connection = {
      server: `http://127.0.0.1:${server.port}`,
      headers: { authorization: `Bearer ${secret}` },
      secrets: [secret],
      identity: "token",
    };
  });
  afterAll(() => server[Symbol.asyncDispose]());

  const status = fc.constantFrom(
    "200 OK",
    "200",
    "401 Unauthorized",
    "403 Forbidden",
    "410 Gone",
    "302 Found",
  );
  const answers = (bodies: fc.Arbitrary<string>, good: readonly string[]): fc.Arbitrary<string> =>
    fc.oneof(
      { weight: 4, arbitrary: fc.tuple(bodies, status).map(([body, code]) => httpAnswer(body, code)) },
      { weight: 1, arbitrary: damagedText(good.map((body) => httpAnswer(body))) },
    );

  test("a list", async () => {
    await holdToIt(
      answers(fc.oneof(damagedJson([list]), reshapedJson([refusal])), [list]),
      async (answer) => {
        server.answer = answer;
        const context = { connection, name: "n1", clock: systemClock };
        const listed = await listNode(context, new AbortController().signal);
        return listed.node === undefined ? undefined : decodePodCidrs(listed.node).problems;
      },
      4,
    );
  });

  test("a watch", async () => {
    const lines = fc
      .array(fc.oneof(damagedJson(watched), reshapedJson([tooOld]), fc.constantFrom(...watched, tooOld)), {
        maxLength: 4,
      })
      .map((all) => all.map((line) => `${line}\n`).join(""));
    await holdToIt(
      answers(lines, watched),
      async (answer) => {
        server.answer = answer;
        const context = { connection, name: "n1", clock: systemClock };
        const options = {
          resourceVersion: "7",
          timeoutSeconds: 1,
          silenceMs: 2_000,
          opened: () => undefined,
        };
        const events = await Array.fromAsync(watchNode(context, options, new AbortController().signal));
        return events.flatMap((event) => ("node" in event ? decodePodCidrs(event.node).problems : []));
      },
      4,
    );
  });
});

test("an exec plugin, by what it writes and how it ends", async () => {
  const answer = JSON.stringify({
    kind: "ExecCredential",
    apiVersion: "client.authentication.k8s.io/v1",
    status: {
      token: secret,
      clientCertificateData: "c",
      clientKeyData: secret,
      expirationTimestamp: "2026-12-02T00:00:00Z",
    },
  });
  const [said, complained] = [join(directory, "said"), join(directory, "complained")];
  const words = fc.oneof(
    damagedText(["cannot reach the cloud\u001b[2J", "\u202e"]),
    // Only as it is: what was cut out of a token is a word like any other.
    fc.constant(`no session for ${secret}`),
  );
  await holdToIt(
    fc.tuple(reshapedJson([answer]), words, fc.constantFrom("0", "0", "0", "1", "127")),
    async ([stdout, stderr, exit]) => {
      writeFileSync(said, stdout);
      writeFileSync(complained, stderr);
      const plugin = {
        apiVersion: "client.authentication.k8s.io/v1" as const,
        command: "/bin/sh",
        args: ["-c", 'cat "$0"; cat "$1" >&2; exit "$2"', said, complained, exit],
        env: {},
      };
      const options = { cluster: {}, environment: {}, clock: systemClock };
      const { expiresAt } = await runPlugin(plugin, options, new AbortController().signal);
      return { expires: expiresAt?.getTime() };
    },
    25,
  );
});
