/** Requests to a Kubernetes API over TLS: who is asked, who asks, and what each refusal says. */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { connect, createServer, type AddressInfo, type Server } from "node:net";
import { systemClock } from "../../src/async.ts";
import { ApiAccess } from "../../src/kubernetes/access.ts";
import { listNode, watchNode, type RequestContext } from "../../src/kubernetes/api.ts";
import type { WatchEvent } from "../../src/kubernetes/node-object.ts";
import { revealKey } from "../../src/trust/credentials.ts";
import { makeClusterCa } from "../../src/trust/make-certificate.ts";
import { FakeClock } from "../fakes/clock.ts";
import { FakeKubeApi, kubeCertificate, type KubeAnswer } from "../fakes/kube-api.ts";
import { failure, withDirectory } from "../host/temporary.ts";
import { waitFor } from "../lab/wait.ts";
import { httpAnswer, RawServer } from "../fakes/raw-server.ts";
import { certificateOf, issued } from "../trust/cluster.ts";

const never = new AbortController().signal;
const ca = makeClusterCa(issued);
const foreign = makeClusterCa(issued);

let api: FakeKubeApi;
beforeAll(async () => {
  api = await FakeKubeApi.start({ ca });
  api.put("n1", ["10.192.1.0/24"]);
  api.put("n2", ["10.192.2.0/24"]);
});
afterAll(() => api[Symbol.asyncDispose]());

type Part = Readonly<Record<string, unknown>>;

/** What a request is made with when a kubeconfig says this. */
async function contextOf(
  user: Part,
  cluster: Part = {},
  change: Partial<RequestContext> = {},
): Promise<RequestContext> {
  return await withDirectory(async (directory) => {
    const kubeconfig = `${directory}/config`;
    await Bun.write(kubeconfig, api.kubeconfig(user, cluster));
    const access = new ApiAccess({ kubeconfig, environment: process.env, clock: new FakeClock() });
    return { connection: await access.connect(never), name: "n1", clock: systemClock, ...change };
  });
}

function list(context: RequestContext): ReturnType<typeof listNode> {
  return listNode(context, never);
}

describe("listNode()", () => {
  test("says of an answer that is cut off that it was, whatever had come of it", async () => {
    await using server = await RawServer.listen("tcp");
    const connection = {
      server: `http://127.0.0.1:${server.port}`,
      headers: {},
      secrets: [],
      identity: "nobody",
    };
    const context = { connection, name: "n1", clock: systemClock };
    for (const status of ["200 OK", "500 x"]) {
      server.answer = httpAnswer('{"kind":"NodeList"', status).replace(/Length: \d+/, "Length: 999");
      const { message } = await failure(() => listNode(context, never));
      expect(message).toStartWith(`Cannot list Kubernetes Node "n1" at ${connection.server}: `);
      expect(message).toMatch(/the connection was closed$|it answers 500$/);
    }
  });

  test.each<{ name: string; user: () => Part; cluster?: Part; as: string }>([
    { name: "by token", user: () => ({ token: api.token("alice") }), as: "alice" },
    {
      name: "by a client certificate",
      user: () => api.clientCertificate("system:node:n1"),
      as: "system:node:n1",
    },
    {
      name: "by a client certificate on Ed25519",
      user: () => {
        const { certificate, key } = certificateOf("bob", ca, { purposes: ["1.3.6.1.5.5.7.3.2"] });
        return {
          "client-certificate-data": btoa(certificate.toString()),
          "client-key-data": btoa(revealKey(key)),
        };
      },
      as: "bob",
    },
    { name: "by name and password", user: () => ({ username: "carol", password: "p" }), as: "carol" },
    {
      name: "at an address that its certificate does not bear, by the name that it bears",
      user: () => ({ token: api.token("alice") }),
      cluster: {
        get server() {
          return api.url.replace("localhost", "127.0.0.1");
        },
        "tls-server-name": "localhost",
      },
      as: "alice",
    },
    {
      name: "without checking it",
      user: () => ({ token: api.token("alice") }),
      cluster: { "certificate-authority-data": "", "insecure-skip-tls-verify": true },
      as: "alice",
    },
    {
      name: "known by one of several CAs",
      user: () => ({ token: api.token("alice") }),
      cluster: {
        "certificate-authority-data": btoa(`${foreign.certificate.toString()}${ca.certificate.toString()}`),
      },
      as: "alice",
    },
  ])("asks an API server $name", async ({ user, cluster, as }) => {
    const { node } = await list(await contextOf(user(), cluster));
    expect(node?.podCidrs).toEqual(["10.192.1.0/24"]);
    expect(api.requests.at(-1)).toEqual({
      verb: "list",
      user: as,
      fieldSelector: "metadata.name=n1",
      resourceVersion: undefined,
      timeoutSeconds: undefined,
      bookmarks: false,
    });
  });

  test("goes through a proxy when it shall", async () => {
    const asked: string[] = [];
    const proxy: Server = createServer((client) => {
      client.once("data", (head) => {
        const [line = ""] = head.toString("latin1").split("\r\n");
        asked.push(line);
        const target = connect(api.port, "127.0.0.1", () => {
          client.write("HTTP/1.1 200 OK\r\n\r\n");
          client.pipe(target);
          target.pipe(client);
        });
        target.on("error", () => {});
      });
      client.on("error", () => {});
    });
    await new Promise<void>((resolve) => void proxy.listen(0, "127.0.0.1", resolve));
    try {
      const { port } = proxy.address() as AddressInfo;
      const context = await contextOf({ token: api.token("a") }, { "proxy-url": `http://127.0.0.1:${port}` });
      expect((await list(context)).node?.name).toBe("n1");
      expect(asked).toEqual([`CONNECT localhost:${api.port} HTTP/1.1`]);
    } finally {
      proxy.close();
    }
  });

  test("finds the Node among others, and says so when it is not there", async () => {
    const always = {
      status: 200,
      body: JSON.stringify({
        kind: "NodeList",
        metadata: { resourceVersion: "5" },
        items: [{ metadata: { name: "n2" } }, { metadata: { name: "n1" } }],
      }),
    };
    const context = await contextOf({ token: api.token("a") });
    api.answers.push(always);
    expect((await list(context)).node?.name).toBe("n1");
    expect(await list({ ...context, name: "n9" })).toEqual({ resourceVersion: "102", node: undefined });
  });

  const rule =
    'A ClusterRole with this rule, bound to that user, gives it: {apiGroups: [""], resources: ["nodes"], resourceNames: ["n1"], verbs: ["list", "watch"]}. The identity of a node itself (system:node:NAME) has it for its own Node: --kubernetes-node must be that NAME';
  test.each<{ name: string; user?: () => Part; answer?: KubeAnswer; want: string; hint?: string }>([
    {
      name: "a token that it does not know",
      user: () => ({ token: "SECRET-TOKEN" }),
      want: 'the API server does not accept the credentials, token of the kubeconfig "CONFIG" (401)',
      hint: "Give the kubeconfig credentials that are valid, of this cluster",
    },
    {
      name: "nobody",
      user: () => ({}),
      want: "the API server does not accept the credentials, nobody (no credentials) (401)",
    },
    {
      name: "a user without the right",
      user: () => ({ token: api.token("nobody") }),
      want: 'the right to list this Node is missing for token of the kubeconfig "CONFIG" (403): "nodes is forbidden: User \\"nobody\\" cannot list resource \\"nodes\\" in API group \\"\\" at the cluster scope"',
      hint: rule,
    },
    {
      name: "another node",
      user: () => api.clientCertificate("system:node:n2"),
      want: 'the right to list this Node is missing for client certificate "CN=system:node:n2" (403): "nodes is forbidden: User \\"system:node:n2\\" cannot list resource \\"nodes\\" in API group \\"\\" at the cluster scope"',
      hint: rule,
    },
    {
      name: "a path that is not there",
      answer: { status: 404, body: "404 page not found" },
      want: "it answers 404",
      hint: "Is this the address of a Kubernetes API server? Redirects are not followed",
    },
    {
      name: "a login page",
      answer: { status: 302, headers: ["location: https://login.example/"] },
      want: "it answers 302",
      hint: "Is this the address of a Kubernetes API server? Redirects are not followed",
    },
    {
      name: "a server that is busy",
      answer: { status: 429, body: JSON.stringify({ message: "too many\nrequests" }) },
      want: 'it answers 429: "too many\\u{a}requests"',
    },
    {
      name: "a server that is broken, whatever it repeats",
      user: () => ({ token: "SECRET-TOKEN" }),
      answer: { status: 500, body: JSON.stringify({ message: "bad Bearer SECRET-TOKEN" }) },
      want: 'it answers 500: "bad Bearer [redacted]"',
    },
    {
      name: "a server that repeats name and password, as they were meant and as they were sent",
      user: () => ({ username: "bob", password: "SECRET/ä 1" }),
      answer: {
        status: 403,
        body: JSON.stringify({
          message: `bob:SECRET/ä 1, Basic ${new TextEncoder().encode("bob:SECRET/ä 1").toBase64()}; password SECRET/ä 1`,
        }),
      },
      want: 'the right to list this Node is missing for user name "bob" (403): "bob:[redacted], Basic [redacted]; password [redacted]"',
      hint: rule,
    },
    {
      name: "a server that repeats a token just where its words are cut",
      user: () => ({ token: "SECRET-TOKEN" }),
      answer: { status: 500, body: JSON.stringify({ message: `${"x".repeat(295)} SECRET-TOKEN` }) },
      want: `it answers 500: "${"x".repeat(295)} [red…" (306 characters)`,
    },
    {
      name: "a web page",
      answer: { status: 200, body: "<html>hello</html>" },
      want: "its answer cannot be read: it is not JSON",
      hint: "Is this the address of a Kubernetes API server?",
    },
    {
      name: "an answer without end",
      answer: { status: 200, body: "x".repeat(17_000_000) },
      want: "its answer is longer than 16777216 characters",
    },
  ])(
    "says what is wrong with $name",
    async ({ user = () => ({ token: api.token("a") }), answer, want, hint }) => {
      const context = await contextOf(user());
      if (answer !== undefined) api.answers.push(answer);
      const found = await failure(() => list(context));
      const message = found.message.replace(/"[^"]*\/config"/, '"CONFIG"');
      expect(message).toBe(`Cannot list Kubernetes Node "n1" at ${api.url}: ${want}`);
      expect(found.hint as string | undefined).toBe(
        hint ??
          (want.includes("401")
            ? "Give the kubeconfig credentials that are valid, of this cluster"
            : undefined),
      );
      expect(`${message} ${String(found.hint)}`).not.toContain("SECRET");
    },
  );

  const notOurs = "its certificate is not signed by the CA of the kubeconfig";
  test.each<{
    name: string;
    cluster?: () => Part;
    server?: Parameters<typeof kubeCertificate>;
    want: string;
  }>([
    { name: "nobody there", cluster: () => ({ server: "https://127.0.0.1:1" }), want: "connection refused" },
    {
      name: "a name that is not known",
      cluster: () => ({ server: "https://nx.invalid" }),
      want: "its name is not known",
    },
    {
      name: "a server of another CA",
      cluster: () => ({ "certificate-authority-data": btoa(foreign.certificate.toString()) }),
      want: notOurs,
    },
    {
      name: "a server that the system's CAs do not know",
      cluster: () => ({ "certificate-authority-data": "" }),
      want: notOurs,
    },
    {
      name: "a server with another name",
      server: ["elsewhere", ca],
      want: "its certificate does not bear the name that was dialled (tls-server-name in the kubeconfig names another)",
    },
    {
      name: "a server whose certificate has expired",
      server: ["localhost", ca, { notAfter: new Date("2026-01-02T00:00:00Z") }],
      want: "its certificate has expired",
    },
    {
      name: "a server whose certificate is not valid yet",
      server: ["localhost", ca, { notBefore: new Date("2126-01-02T00:00:00Z") }],
      want: "its certificate is not valid yet",
    },
    {
      name: "a server that signs for itself",
      server: ["localhost", ca, { selfSigned: true }],
      want: notOurs,
    },
  ])("refuses $name and sends no credentials", async ({ cluster, server, want }) => {
    await using other =
      server === undefined ? undefined : await FakeKubeApi.start({ ca, server: kubeCertificate(...server) });
    const before = api.requests.length;
    const given = other === undefined ? (cluster?.() ?? {}) : { server: other.url };
    const context = await contextOf({ token: api.token("a") }, given);
    const { message } = await failure(() => list(context));
    expect(message).toBe(`Cannot list Kubernetes Node "n1" at ${context.connection.server}: ${want}`);
    expect([api.requests.length - before, other?.requests.length ?? 0]).toEqual([0, 0]);
  });

  test("waits 30 s for an answer and no longer", async () => {
    const clock = new FakeClock();
    const context = await contextOf({ token: api.token("a") }, {}, { clock });
    api.silent = true;
    try {
      const before = api.requests.length;
      const listing = failure(() => list(context));
      await waitFor(() => api.requests.length > before, "the request");
      await clock.advance(30_000);
      expect((await listing).message).toEndWith("no answer for 30 s");
    } finally {
      api.silent = false;
    }
    expect(clock.sleeping).toBe(0);
  });
});

describe("watchNode()", () => {
  const options = { timeoutSeconds: 90, silenceMs: 100_000 };

  async function watchOf(
    change: Partial<RequestContext> = {},
    signal = never,
  ): Promise<{ readonly events: WatchEvent[]; readonly ended: Promise<{ message: string }> }> {
    const context = await contextOf({ token: api.token("a") }, {}, change);
    const { resourceVersion } = await list(context);
    const events: WatchEvent[] = [];
    let isOpen = false;
    const opened = (): void => void (isOpen = true);
    const ended = failure(async () => {
      for await (const event of watchNode(context, { ...options, resourceVersion, opened }, signal))
        events.push(event);
      throw new Error("ended as agreed");
    });
    // That the server has it is not enough: until the answer is here another time limit holds.
    await waitFor(() => isOpen, "a watch");
    return { events, ended };
  }

  test("gives events and bookmarks of this Node, in whatever pieces they come, until the server ends it", async () => {
    const { events, ended } = await watchOf();
    api.put("n1", ["10.192.3.0/24", "ä"]);
    api.bookmark();
    // A line in pieces, cut in the middle of a letter of two bytes, and two lines in one piece.
    const object = { metadata: { name: "n1", resourceVersion: "500" }, spec: { podCIDR: "é" } };
    const line = `${JSON.stringify({ type: "MODIFIED", object })}\n`;
    api.send(line.slice(0, 20));
    api.send(
      `${line.slice(20)}${line.replace("500", "501").replace("n1", "n2")}\n{"type":"NEW","object":{}}\n`,
    );
    await waitFor(() => events.length >= 5, "events");
    api.endWatches();
    expect((await ended).message).toBe("ended as agreed");
    expect(
      events.map((event) => ("node" in event ? [event.kind, ...event.node.podCidrs] : [event.kind])),
    ).toEqual([["changed", "10.192.3.0/24", "ä"], ["bookmark"], ["changed", "é"], ["bookmark"], ["unknown"]]);
    expect(api.requests.at(-1)).toMatchObject({ verb: "watch", timeoutSeconds: 90, bookmarks: true });
  });

  test.each<{ name: string; end: () => void; want: string }>([
    { name: "is cut", end: () => api.cut(), want: "the connection was closed" },
    { name: "is cut in mid line", end: () => api.cut('{"type":"MODI'), want: "the connection was closed" },
    {
      name: "ends in mid line",
      end: () => {
        api.send('{"type":"MODI');
        api.endWatches();
      },
      want: "it ended in the middle of a line",
    },
    {
      name: "says nonsense",
      end: () => api.send("nonsense\n"),
      want: "a line of it cannot be read: it is not JSON",
    },
    {
      name: "has a line without end",
      end: () => {
        for (let times = 0; times < 17; times++) api.send("x".repeat(1_000_000));
      },
      want: "a line of it is longer than 16777216 characters",
    },
    {
      name: "says that its version is too old",
      end: () => api.send('{"type":"ERROR","object":{"code":410,"message":"too old"}}\n'),
      want: "the API server does not remember the version that was asked for any more (410)",
    },
    {
      name: "ends in an error",
      end: () => api.send('{"type":"ERROR","object":{"code":500,"message":"etcd"}}\n'),
      want: 'it answers 500: "etcd"',
    },
  ])("says that a watch $name", async ({ end, want }) => {
    const { ended } = await watchOf();
    end();
    expect((await ended).message).toBe(`Cannot watch Kubernetes Node "n1" at ${api.url}: ${want}`);
    await waitFor(() => api.watching === 0, "the end of the connection");
  });

  test("takes a stream that is silent for longer than it may last for lost, and not one that speaks", async () => {
    const clock = new FakeClock();
    const { events, ended } = await watchOf({ clock });
    await clock.advance(99_000);
    api.bookmark();
    await waitFor(() => events.length === 1, "the bookmark");
    await clock.advance(99_000);
    expect(api.watching).toBe(1);
    await clock.advance(1_000);
    expect((await ended).message).toEndWith("silent for 100 s");
    await waitFor(() => api.watching === 0, "the end of the connection");
    expect(clock.sleeping).toBe(0);
  });

  test("ends with its signal, and lets go of the connection", async () => {
    const stop = new AbortController();
    const { ended } = await watchOf({}, stop.signal);
    stop.abort();
    await ended;
    await waitFor(() => api.watching === 0, "the end of the connection");
  });
});
