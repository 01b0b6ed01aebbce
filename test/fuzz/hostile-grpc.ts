/**
 * A server that speaks HTTP/2 and says over it whatever it is told to: what a real gRPC server would never send, too.
 */
import { createServer, type Http2Server, type ServerHttp2Stream } from "node:http2";

/** One answer, to whatever is called. */
export interface HostileAnswer {
  readonly httpStatus: number;
  readonly contentType: string;
  /** Of each message: its bytes, and the five bytes in front of it. */
  readonly messages: readonly {
    readonly bytes: Uint8Array;
    readonly length: number;
    readonly flag: number;
  }[];
  /** Without: the stream ends without trailers. */
  readonly trailers: { readonly status: string; readonly message: string } | undefined;
}

export class HostileGrpc implements AsyncDisposable {
  answer: HostileAnswer = {
    httpStatus: 200,
    contentType: "application/grpc",
    messages: [],
    trailers: undefined,
  };
  readonly #server: Http2Server;
  readonly #streams = new Set<ServerHttp2Stream>();

  private constructor() {
    this.#server = createServer();
    this.#server.on("stream", (stream: ServerHttp2Stream) => {
      this.#streams.add(stream);
      stream.on("close", () => this.#streams.delete(stream));
      // The client may have left: that is for it to say.
      stream.on("error", () => undefined);
      this.#reply(stream);
    });
  }

  /** Listens on a free port of this machine. */
  static async start(): Promise<HostileGrpc> {
    const server = new HostileGrpc();
    await new Promise<void>((resolve) => server.#server.listen(0, "127.0.0.1", resolve));
    return server;
  }

  get address(): string {
    const address = this.#server.address();
    if (address === null || typeof address === "string") throw new Error("the server has no port");
    return `127.0.0.1:${address.port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const stream of this.#streams) stream.destroy();
    await new Promise<void>((resolve) => this.#server.close(() => resolve()));
  }

  #reply(stream: ServerHttp2Stream): void {
    const { httpStatus, contentType, messages, trailers } = this.answer;
    stream.on("wantTrailers", () => {
      if (trailers === undefined) stream.close();
      else stream.sendTrailers({ "grpc-status": trailers.status, "grpc-message": trailers.message });
    });
    stream.respond({ ":status": httpStatus, "content-type": contentType }, { waitForTrailers: true });
    for (const { bytes, length, flag } of messages) {
      const head = Buffer.alloc(5);
      head.writeUInt8(flag, 0);
      head.writeUInt32BE(length, 1);
      stream.write(Buffer.concat([head, bytes]));
    }
    stream.end();
  }
}
