/**
 * What may answer at a Curator's address without being one: a load balancer, a web server, a port that somebody else
 * took. It keeps a book of who came, and when.
 */
import { createServer as createHttp2Server } from "node:http2";
import { once } from "node:events";
import { createServer, type Server, type Socket } from "node:net";

/** How an impostor answers each connection. */
export type Manner =
  /** Ends it at once. */
  | "closes"
  /** Resets it at once. */
  | "resets"
  /** Says nothing, ever. */
  | "silent"
  /** Bytes of no protocol. */
  | "noise"
  /** Another protocol's error. */
  | "http1"
  | "tls-alert"
  /** HTTP/2, and an error of a web server for every call. */
  | "http2-404"
  | "http2-503"
  /** HTTP/2 with status 200, and a page instead of messages. */
  | "http2-page";

/** A connection that came. */
export interface Caller {
  /** Milliseconds since 1970. */
  readonly at: number;
  readonly address: string;
}

const words: Readonly<Record<"noise" | "http1" | "tls-alert", () => Uint8Array>> = {
  noise: () => crypto.getRandomValues(new Uint8Array(200)),
  http1: () => Buffer.from("HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
  "tls-alert": () => new Uint8Array([0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x46]),
};

export class Impostor {
  readonly #callers: Caller[];
  readonly #sockets = new Set<Socket>();
  readonly #server: Server;

  private constructor(manner: Manner, callers: Caller[]) {
    this.#callers = callers;
    this.#server = serverOf(manner);
    this.#server.on("connection", (socket: Socket) => {
      this.#callers.push({ at: Date.now(), address: socket.remoteAddress ?? "" });
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
      // The other side may go away at any time.
      socket.on("error", () => {});
    });
  }

  /** Listens; every connection is added to `callers`. */
  static async start(options: {
    readonly host: string;
    readonly port: number;
    readonly manner: Manner;
    readonly callers: Caller[];
  }): Promise<Impostor> {
    const impostor = new Impostor(options.manner, options.callers);
    impostor.#server.listen(options.port, options.host);
    await once(impostor.#server, "listening");
    return impostor;
  }

  /** Closes the port and every connection. */
  async stop(): Promise<void> {
    const closed = once(this.#server, "close");
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }
}

function serverOf(manner: Manner): Server {
  switch (manner) {
    case "closes":
      return createServer((socket) => socket.end());
    case "resets":
      return createServer((socket) => socket.resetAndDestroy());
    case "silent":
      return createServer(() => {});
    case "noise":
    case "http1":
    case "tls-alert":
      return createServer((socket) => socket.end(words[manner]()));
    case "http2-404":
    case "http2-503":
    case "http2-page":
      return createHttp2Server((_request, response) => {
        const status = { "http2-404": 404, "http2-503": 503, "http2-page": 200 }[manner];
        response.writeHead(status, { "content-type": "text/html" });
        response.end("<html>not a Curator</html>");
      });
  }
}
