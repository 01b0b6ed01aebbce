/**
 * A Kubernetes API for agents on machines of the lab, with one Node, "n1": a fake one, or a real kube-apiserver when
 * CLUSTERNET_TEST_KUBE names the directory where scripts/kube-apiserver.sh has started it. Both do the same here.
 *
 *     await using kube = await Kube.create(lab);
 *     const kubeconfig = await kube.enter(machine);       // as the identity of Node n1, and no other
 *     await kube.put(["10.192.7.0/24"]);
 *     await kube.leave();                                 // the API server is away
 *
 * Agents reach it through a door (door.ts) at 127.0.0.1 of their own machine.
 */
import { once } from "node:events";
import { readFile, writeFile } from "node:fs/promises";
import { connect, createServer, type Server, type Socket } from "node:net";
import { join } from "node:path";
import { FakeKubeApi } from "../fakes/kube-api.ts";
import type { Lab, Machine } from "./lab.ts";

/** Where the doors are: the port of the real one is part of its kubeconfig. */
const defaultPort = 16443;
/** Longest wait for a door. */
const openMs = 10_000;

/** Name of the one Node. */
export const nodeName = "n1";

/** Directory of a real kube-apiserver that runs, or undefined. */
export const realKube = process.env["CLUSTERNET_TEST_KUBE"];

/** What is behind the doors. */
interface Backend extends AsyncDisposable {
  /** Of the identity of Node n1, for a server at 127.0.0.1. */
  kubeconfig(): Promise<string>;
  put(podCidrs: readonly string[]): Promise<void>;
  remove(): Promise<void>;
  leave(): Promise<void>;
  come(): Promise<void>;
}

export class Kube implements AsyncDisposable {
  readonly #lab: Lab;
  readonly #backend: Backend;
  readonly #socket: string;

  private constructor(lab: Lab, backend: Backend, socket: string) {
    this.#lab = lab;
    this.#backend = backend;
    this.#socket = socket;
  }

  static async create(lab: Lab): Promise<Kube> {
    const socket = join(await lab.directory(), "kube.sock");
    const backend = realKube === undefined ? await fakeBackend(socket) : await realBackend(socket, realKube);
    return new Kube(lab, backend, socket);
  }

  /** Opens a door on the machine, and returns the path of a kubeconfig for agents there. */
  async enter(machine: Machine): Promise<string> {
    await openDoor(machine, this.#socket);
    const path = join(await this.#lab.directory(), "kubeconfig");
    await writeFile(path, await this.#backend.kubeconfig(), { mode: 0o600 });
    return path;
  }

  /** Makes the Node, or gives it other pod networks. */
  async put(podCidrs: readonly string[] = []): Promise<void> {
    await this.#backend.put(podCidrs);
  }

  /** Deletes the Node. */
  async remove(): Promise<void> {
    await this.#backend.remove();
  }

  /** The API server is away: every connection to it is cut, and no new one is taken. */
  async leave(): Promise<void> {
    await this.#backend.leave();
  }

  /** It is back. */
  async come(): Promise<void> {
    await this.#backend.come();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#backend[Symbol.asyncDispose]();
  }
}

/** Lets programs on the machine connect to the Unix socket at 127.0.0.1:`port`. */
export async function openDoor(machine: Machine, socket: string, port = defaultPort): Promise<void> {
  const door = machine.spawn([process.execPath, join(import.meta.dir, "door.ts"), String(port), socket]);
  await door.waitForLine(/^open$/, { limitMs: openMs });
}

async function fakeBackend(socket: string): Promise<Backend> {
  const api = await FakeKubeApi.start({ listen: socket });
  const user = api.clientCertificate(`system:node:${nodeName}`);
  const server = { server: `https://127.0.0.1:${defaultPort}`, "tls-server-name": "localhost" };
  return {
    kubeconfig: async () => api.kubeconfig(user, server),
    put: async (podCidrs) => api.put(nodeName, podCidrs, podCidrs[0]),
    remove: async () => api.remove(nodeName),
    leave: () => api.pause(),
    come: () => api.resume(),
    [Symbol.asyncDispose]: () => api[Symbol.asyncDispose](),
  };
}

/** The real one listens in the namespace of the tests; what is behind the doors hands on to it. */
async function realBackend(socket: string, directory: string): Promise<Backend> {
  const read = (name: string): Promise<string> => readFile(join(directory, name), "utf8");
  const nodes = `https://127.0.0.1:${defaultPort}/api/v1/nodes`;
  const tls = {
    ca: await read("pki/ca.pem"),
    cert: await read("pki/admin.pem"),
    key: await read("pki/admin.key"),
  };
  const ask = async (method: string, url: string, body?: unknown): Promise<number> => {
    const contentType = method === "PATCH" ? "application/merge-patch+json" : "application/json";
    const init = { method, tls, headers: { "content-type": contentType } };
    const answer = await fetch(url, body === undefined ? init : { ...init, body: JSON.stringify(body) });
    const text = await answer.text();
    if (!answer.ok && answer.status !== 404) throw new Error(`${method} ${url}: ${answer.status} ${text}`);
    return answer.status;
  };
  const own = `${nodes}/${nodeName}`;
  const relay = new Relay(socket);
  await ask("DELETE", own);
  await relay.listen();
  return {
    kubeconfig: async () => await read("kubeconfig"),
    put: async (podCidrs) => {
      const spec = { podCIDRs: podCidrs, podCIDR: podCidrs[0] };
      // Kubernetes lets nobody change what a Node has got once: another one takes its place.
      const given = podCidrs.length === 0 ? {} : spec;
      if ((await ask("GET", own)) === 404) {
        await ask("POST", nodes, {
          kind: "Node",
          apiVersion: "v1",
          metadata: { name: nodeName },
          spec: given,
        });
      } else if ((await podCidrsOf(own, tls)).length === 0) {
        await ask("PATCH", own, { spec: given });
      } else {
        await ask("DELETE", own);
        await ask("POST", nodes, {
          kind: "Node",
          apiVersion: "v1",
          metadata: { name: nodeName },
          spec: given,
        });
      }
    },
    remove: async () => void (await ask("DELETE", own)),
    leave: () => relay.close(),
    come: () => relay.listen(),
    [Symbol.asyncDispose]: async () => {
      await relay.close();
      await ask("DELETE", own);
    },
  };
}

async function podCidrsOf(url: string, tls: Record<string, string>): Promise<readonly string[]> {
  const node = (await (await fetch(url, { tls })).json()) as {
    readonly spec?: { readonly podCIDRs?: string[] };
  };
  return node.spec?.podCIDRs ?? [];
}

/** Hands connections on from a Unix socket to the real API server. */
class Relay {
  readonly #path: string;
  readonly #sockets = new Set<Socket>();
  #server: Server | undefined;

  constructor(path: string) {
    this.#path = path;
  }

  async listen(): Promise<void> {
    if (this.#server !== undefined) return;
    this.#server = createServer((client) => {
      const inside = connect(defaultPort, "127.0.0.1");
      for (const socket of [client, inside]) {
        this.#sockets.add(socket);
        socket.on("error", () => {});
        socket.on("close", () => {
          this.#sockets.delete(socket);
          client.destroy();
          inside.destroy();
        });
      }
      client.pipe(inside);
      inside.pipe(client);
    });
    const listening = once(this.#server, "listening");
    this.#server.listen(this.#path);
    await listening;
  }

  async close(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    if (server === undefined) return;
    const closed = once(server, "close");
    server.close();
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }
}
