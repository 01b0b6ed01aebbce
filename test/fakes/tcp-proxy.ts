/**
 * A TCP proxy that can fall silent without closing anything: what a host that is gone, or a firewall that drops,
 * looks like from the other end.
 */
import { once } from "node:events";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";

export class TcpProxy implements AsyncDisposable {
  /** While true nothing that arrives is handed on; new connections are taken and get no answer. */
  silent = false;
  /** Connections taken so far. */
  accepted = 0;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  /** A proxy to HOST:PORT. */
  static async start(to: string): Promise<TcpProxy> {
    const proxy = new TcpProxy(to);
    proxy.#server.listen(0, "127.0.0.1");
    await once(proxy.#server, "listening");
    return proxy;
  }

  private constructor(to: string) {
    const colon = to.lastIndexOf(":");
    this.#server = createServer((client) => {
      this.accepted++;
      const server = connect(Number(to.slice(colon + 1)), to.slice(0, colon));
      this.#join(client, server);
      this.#join(server, client);
    });
  }

  /** HOST:PORT to connect to instead. */
  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const closed = once(this.#server, "close");
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  #join(from: Socket, to: Socket): void {
    this.#sockets.add(from);
    from.on("data", (bytes) => {
      if (!this.silent) to.write(bytes);
    });
    // A reset is an end like any other here.
    from.on("error", () => {});
    from.on("close", () => {
      this.#sockets.delete(from);
      if (!this.silent) to.end();
    });
  }
}
