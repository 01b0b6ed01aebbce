/**
 * A Kubernetes API server as far as Nodes go: TLS, client certificates and tokens, list and watch with versions,
 * bookmarks and 410, and everything that goes wrong on the way.
 *
 *     await using api = await FakeKubeApi.start();
 *     api.put("n1", ["10.192.1.0/24"]);
 *     await Bun.write(path, api.kubeconfig({ token: api.token("alice") }));
 *     api.cut('{"type":"MODI');             // every watch ends there
 *     api.requests                          // what was asked, and by whom
 *
 * HTTP is written by hand: Bun's own servers neither tell the client's certificate nor can end in mid line. It refuses
 * what it does not know. A node's identity (system:node:NAME) may list and watch its own Node, by field selector only.
 */
import { generateKeyPairSync } from "node:crypto";
import { once } from "node:events";
import { type AddressInfo } from "node:net";
import { createServer, type Server, type TLSSocket } from "node:tls";
import { purpose } from "../../src/trust/certificate.ts";
import { revealKey } from "../../src/trust/credentials.ts";
import { type KeyedCertificate, makeClusterCa } from "../../src/trust/make-certificate.ts";
import { certificateOf, issued } from "../trust/cluster.ts";

/** What was asked, and by whom. */
export interface KubeRequest {
  readonly verb: "list" | "watch";
  /** Common name of the client's certificate, or whom the token belongs to. */
  readonly user: string | undefined;
  readonly fieldSelector: string | undefined;
  readonly resourceVersion: string | undefined;
  readonly timeoutSeconds: number | undefined;
  readonly bookmarks: boolean;
}

/** An answer instead of the right one. */
export interface KubeAnswer {
  readonly status: number;
  readonly body?: string;
  readonly headers?: readonly string[];
}

interface StoredNode {
  readonly podCIDRs?: readonly unknown[];
  readonly podCIDR?: string;
  readonly version: number;
}

interface HistoryEntry {
  readonly type: "ADDED" | "MODIFIED" | "DELETED";
  readonly name: string;
  readonly node: StoredNode;
}

interface Watch {
  readonly socket: TLSSocket;
  readonly name: string | undefined;
}

/** Where it listens: a port of 127.0.0.1 (0: a free one), or the path of a Unix socket. */
export type Listen = number | string;

export class FakeKubeApi implements AsyncDisposable {
  readonly ca: KeyedCertificate;
  readonly requests: KubeRequest[] = [];
  /** Answers to come instead of the right ones, one a request, the oldest first. */
  readonly answers: KubeAnswer[] = [];
  /** Every request is answered so; undefined: rightly. */
  always: KubeAnswer | undefined;
  /** Takes requests and says nothing. */
  silent = false;
  readonly #server: Server;
  readonly #listen: Listen;
  readonly #tokens = new Map<string, string>();
  readonly #nodes = new Map<string, StoredNode>();
  readonly #history: HistoryEntry[] = [];
  readonly #sockets = new Set<TLSSocket>();
  readonly #watches = new Set<Watch>();
  #version = 100;
  /** Older versions are forgotten. */
  #oldest = 0;

  private constructor(server: KeyedCertificate, ca: KeyedCertificate, listen: Listen) {
    this.ca = ca;
    this.#listen = listen;
    this.#server = createServer(
      {
        cert: server.certificate.toString(),
        key: revealKey(server.key),
        ca: ca.certificate.toString(),
        requestCert: true,
        rejectUnauthorized: false,
      },
      (socket) => this.#serve(socket),
    );
    // A client that does not like the certificate ends the handshake: its own affair.
    this.#server.on("tlsClientError", () => {});
  }

  /** Listens. `server` is made for "localhost", unless a test gives its own certificate. */
  static async start(
    options: {
      readonly ca?: KeyedCertificate;
      readonly server?: KeyedCertificate;
      readonly listen?: Listen;
    } = {},
  ): Promise<FakeKubeApi> {
    const ca = options.ca ?? makeClusterCa(issued);
    const api = new FakeKubeApi(options.server ?? kubeCertificate("localhost", ca), ca, options.listen ?? 0);
    await api.resume();
    return api;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** With the name that its certificate bears. */
  get url(): string {
    return `https://localhost:${this.port}`;
  }

  /** A kubeconfig in JSON, which is YAML; `cluster` and `user` take the place of what is in it. */
  kubeconfig(
    user: Readonly<Record<string, unknown>>,
    cluster: Readonly<Record<string, unknown>> = {},
  ): string {
    const ca = new TextEncoder().encode(this.ca.certificate.toString()).toBase64();
    return JSON.stringify({
      apiVersion: "v1",
      kind: "Config",
      "current-context": "test",
      contexts: [{ name: "test", context: { cluster: "test", user: "test" } }],
      clusters: [
        { name: "test", cluster: { server: this.url, "certificate-authority-data": ca, ...cluster } },
      ],
      users: [{ name: "test", user }],
    });
  }

  /** A kubeconfig's user with a client certificate of this name, in it as data. */
  clientCertificate(
    name: string,
    changes: Parameters<typeof kubeCertificate>[2] = {},
  ): Record<string, string> {
    const { certificate, key } = kubeCertificate(name, this.ca, {
      purposes: [purpose.clientAuth],
      ...changes,
    });
    return {
      "client-certificate-data": new TextEncoder().encode(certificate.toString()).toBase64(),
      "client-key-data": new TextEncoder().encode(revealKey(key)).toBase64(),
    };
  }

  /** A new token of this user. */
  token(user: string): string {
    const token = `token-${crypto.randomUUID()}`;
    this.#tokens.set(token, user);
    return token;
  }

  /** The token is taken no more. */
  revoke(token: string): void {
    this.#tokens.delete(token);
  }

  /** Adds or changes a Node. */
  put(name: string, podCIDRs?: readonly unknown[], podCIDR?: string): void {
    const type = this.#nodes.has(name) ? "MODIFIED" : "ADDED";
    const node: StoredNode = {
      version: ++this.#version,
      ...(podCIDRs === undefined ? {} : { podCIDRs }),
      ...(podCIDR === undefined ? {} : { podCIDR }),
    };
    this.#nodes.set(name, node);
    this.#tell({ type, name, node });
  }

  /** Deletes a Node. */
  remove(name: string): void {
    const node = this.#nodes.get(name);
    if (node === undefined) throw new Error(`Node ${name} is not there`);
    this.#nodes.delete(name);
    this.#tell({ type: "DELETED", name, node: { ...node, version: ++this.#version } });
  }

  /** Open watches. */
  get watching(): number {
    return this.#watches.size;
  }

  /** Sends a bookmark of a new version on every watch. */
  bookmark(): void {
    const object = { kind: "Node", apiVersion: "v1", metadata: { resourceVersion: String(++this.#version) } };
    this.send(`${JSON.stringify({ type: "BOOKMARK", object })}\n`);
  }

  /** Forgets what happened up to now: a watch from before is answered 410. */
  compact(): void {
    this.#oldest = ++this.#version;
  }

  /** Sends this on every watch as it is. */
  send(text: string): void {
    for (const { socket } of this.#watches) socket.write(chunk(text));
  }

  /** Ends every watch as a server does whose time has come. */
  endWatches(): void {
    for (const { socket } of this.#watches) socket.end("0\r\n\r\n");
    this.#watches.clear();
  }

  /** Cuts every watch, after these last words. */
  cut(lastWords?: string): void {
    for (const { socket } of this.#watches) {
      if (lastWords !== undefined) socket.write(chunk(lastWords));
      socket.destroySoon();
    }
    this.#watches.clear();
  }

  /** Stops listening and cuts everything off: the API server is away. */
  async pause(): Promise<void> {
    const closed = once(this.#server, "close");
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
    this.#watches.clear();
    await closed;
  }

  /** Listens again, where it did before, unless it does. */
  async resume(port: number = typeof this.#listen === "number" ? this.#listen : 0): Promise<void> {
    if (this.#server.listening) return;
    const listening = once(this.#server, "listening");
    if (typeof this.#listen === "string") this.#server.listen(this.#listen);
    else this.#server.listen(port, "127.0.0.1");
    await listening;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#server.listening) await this.pause();
  }

  #tell(entry: HistoryEntry): void {
    this.#history.push(entry);
    for (const { socket, name } of this.#watches) {
      if (name === undefined || name === entry.name) socket.write(chunk(eventLine(entry)));
    }
  }

  #serve(socket: TLSSocket): void {
    this.#sockets.add(socket);
    let head = "";
    socket.on("error", () => {});
    socket.on("close", () => {
      this.#sockets.delete(socket);
      for (const watch of this.#watches) if (watch.socket === socket) this.#watches.delete(watch);
    });
    socket.on("data", (bytes) => {
      head += bytes.toString("latin1");
      const end = head.indexOf("\r\n\r\n");
      if (end === -1) return;
      const request = head.slice(0, end);
      head = head.slice(end + 4);
      this.#answer(request, socket);
    });
  }

  #answer(head: string, socket: TLSSocket): void {
    const [line = "", ...headers] = head.split("\r\n");
    const [method, target = ""] = line.split(" ");
    const url = new URL(target, "https://localhost");
    const query = url.searchParams;
    const timeout = query.get("timeoutSeconds");
    const request: KubeRequest = {
      verb: query.get("watch") === "1" ? "watch" : "list",
      user: this.#userOf(headers, socket),
      fieldSelector: query.get("fieldSelector") ?? undefined,
      resourceVersion: query.get("resourceVersion") ?? undefined,
      timeoutSeconds: timeout === null ? undefined : Number(timeout),
      bookmarks: query.get("allowWatchBookmarks") === "true",
    };
    this.requests.push(request);
    if (this.silent) return;
    const other = this.always ?? this.answers.shift();
    if (other !== undefined) return respond(socket, other.status, other.body ?? "", other.headers);
    if (method !== "GET" || url.pathname !== "/api/v1/nodes") {
      return respond(
        socket,
        404,
        statusOf(404, "NotFound", "the server could not find the requested resource"),
      );
    }
    if (request.user === undefined)
      return respond(socket, 401, statusOf(401, "Unauthorized", "Unauthorized"));
    const name = /^metadata\.name=(.+)$/.exec(request.fieldSelector ?? "")?.[1];
    if (!mayRead(request.user, name)) {
      const message = `nodes is forbidden: User "${request.user}" cannot ${request.verb} resource "nodes" in API group "" at the cluster scope`;
      return respond(socket, 403, statusOf(403, "Forbidden", message));
    }
    if (request.verb === "watch") this.#watch(socket, name, Number(request.resourceVersion));
    else this.#list(socket, name);
  }

  #userOf(headers: readonly string[], socket: TLSSocket): string | undefined {
    const authorization = headers.find((each) => /^authorization: /i.test(each))?.slice(15);
    if (authorization?.startsWith("Bearer ") === true) return this.#tokens.get(authorization.slice(7));
    if (authorization?.startsWith("Basic ") === true) {
      return new TextDecoder().decode(Uint8Array.fromBase64(authorization.slice(6))).split(":")[0];
    }
    // Without a subject there is none here either.
    const { subject }: { readonly subject?: { readonly CN?: string | string[] } } =
      socket.getPeerCertificate();
    return socket.authorized && subject?.CN !== undefined ? String(subject.CN) : undefined;
  }

  #list(socket: TLSSocket, name: string | undefined): void {
    const items = [...this.#nodes]
      .filter(([each]) => name === undefined || each === name)
      .map(([each, node]) => objectOf(each, node));
    const metadata = { resourceVersion: String(this.#version) };
    respond(socket, 200, JSON.stringify({ kind: "NodeList", apiVersion: "v1", metadata, items }));
  }

  #watch(socket: TLSSocket, name: string | undefined, from: number): void {
    socket.write(`${headOf(200)}transfer-encoding: chunked\r\n\r\n`);
    if (from < this.#oldest) {
      const message = `too old resource version: ${from} (${this.#oldest})`;
      const object = JSON.parse(statusOf(410, "Expired", message)) as unknown;
      socket.end(`${chunk(`${JSON.stringify({ type: "ERROR", object })}\n`)}0\r\n\r\n`);
      return;
    }
    this.#watches.add({ socket, name });
    for (const entry of this.#history) {
      const isWanted = name === undefined || name === entry.name;
      if (entry.node.version > from && isWanted) socket.write(chunk(eventLine(entry)));
    }
  }
}

/** A certificate as a Kubernetes cluster has them: on P-256, for server and client. */
export function kubeCertificate(
  name: string,
  ca: KeyedCertificate,
  changes: Parameters<typeof certificateOf>[2] = {},
): KeyedCertificate {
  const keys = generateKeyPairSync("ec", { namedCurve: "prime256v1" });
  return certificateOf(name, ca, { keys, purposes: [purpose.serverAuth, purpose.clientAuth], ...changes });
}

function mayRead(user: string, name: string | undefined): boolean {
  const node = /^system:node:(.*)$/.exec(user)?.[1];
  return node === undefined ? user !== "nobody" : node === name;
}

function objectOf(name: string, { podCIDR, podCIDRs, version }: StoredNode): unknown {
  return {
    kind: "Node",
    apiVersion: "v1",
    metadata: { name, resourceVersion: String(version), labels: { "kubernetes.io/hostname": name } },
    spec: { podCIDR, podCIDRs },
    status: { conditions: [{ type: "Ready", status: "True" }] },
  };
}

function eventLine({ type, name, node }: HistoryEntry): string {
  return `${JSON.stringify({ type, object: objectOf(name, node) })}\n`;
}

function statusOf(code: number, reason: string, message: string): string {
  return JSON.stringify({ kind: "Status", apiVersion: "v1", status: "Failure", message, reason, code });
}

function headOf(status: number): string {
  return `HTTP/1.1 ${status} Answer\r\ncontent-type: application/json\r\nconnection: close\r\n`;
}

function chunk(text: string): string {
  return `${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`;
}

function respond(socket: TLSSocket, status: number, body: string, headers: readonly string[] = []): void {
  const more = headers.map((each) => `${each}\r\n`).join("");
  socket.end(`${headOf(status)}${more}content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
}
