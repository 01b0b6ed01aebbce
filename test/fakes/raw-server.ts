/**
 * A listener that answers whoever says something with the same bytes, and hangs up: HTTP as it should never come.
 */
import { createServer, type Server } from "node:net";

export class RawServer implements AsyncDisposable {
  /** What the next one gets. */
  answer = "";
  /** Of TCP; 0 on a Unix socket. */
  readonly port: number;
  readonly #server: Server;

  private constructor(server: Server, port: number) {
    this.#server = server;
    this.port = port;
  }

  /** On a Unix socket, or a free port of this machine. */
  static async listen(at: { readonly path: string } | "tcp"): Promise<RawServer> {
    const server = createServer((socket) => {
      socket.on("error", () => undefined);
      socket.once("data", () => socket.end(Buffer.from(raw.answer)));
    });
    await new Promise<void>((resolve) => {
      if (at === "tcp") server.listen(0, "127.0.0.1", resolve);
      else server.listen(at.path, resolve);
    });
    const address = server.address();
    const raw = new RawServer(server, typeof address === "object" && address !== null ? address.port : 0);
    return raw;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }
}

/** HTTP with this body. */
export function httpAnswer(body: string, status = "200 OK"): string {
  return `HTTP/1.1 ${status}\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
}
