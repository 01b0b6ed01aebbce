/**
 * A TLS server that sends whatever certificates a test wants, and counts what comes back: the certificates of the
 * client, and the bytes that it sends after the handshake.
 */
import { createServer, type TLSSocket } from "node:tls";
import type { AddressInfo, Socket } from "node:net";
import type { X509Certificate } from "node:crypto";
import { sentCertificateBytes } from "../../src/trust/sent-certificates.ts";
import { revealKey } from "../../src/trust/credentials.ts";
import type { KeyedCertificate } from "../../src/trust/make-certificate.ts";

export interface TlsServerOptions extends KeyedCertificate {
  readonly sentAlong?: readonly X509Certificate[];
  readonly maxVersion?: "TLSv1.2";
}

export class TlsServer implements AsyncDisposable {
  /** Of every connection whose handshake ended: certificates of the client, and bytes after the handshake. */
  readonly seen: { readonly certificates: number; bytes: number }[] = [];
  /** TCP connections so far, and those that are open. */
  connections = 0;
  open = 0;
  readonly #server;

  private constructor({ certificate, key, sentAlong = [], maxVersion }: TlsServerOptions) {
    this.#server = createServer(
      {
        cert: [certificate, ...sentAlong].join("\n"),
        key: revealKey(key),
        requestCert: true,
        rejectUnauthorized: false,
        ALPNProtocols: ["h2"],
        ...(maxVersion === undefined ? {} : { minVersion: maxVersion, maxVersion }),
      },
      (socket: TLSSocket) => {
        const seen = { certificates: sentCertificateBytes(socket).length, bytes: 0 };
        this.seen.push(seen);
        socket.on("data", (data) => (seen.bytes += data.length));
        socket.on("error", () => {});
      },
    );
    this.#server.on("connection", (socket: Socket) => {
      this.connections++;
      this.open++;
      socket.on("close", () => this.open--);
    });
    // A client that ends the handshake is an answer, and `seen` says it.
    this.#server.on("tlsClientError", () => {});
  }

  static async start(options: TlsServerOptions): Promise<TlsServer> {
    const server = new TlsServer(options);
    await new Promise<void>((resolve) => void server.#server.listen(0, "127.0.0.1", resolve));
    return server;
  }

  /** HOST:PORT. */
  get address(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.close();
  }
}
