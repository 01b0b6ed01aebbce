/**
 * TLS to a Curator, done here from the first byte to the last, since gRPC's own way does two things wrong for us: it
 * asks for the name that was dialled, and a `ca` option makes the TLS library send that CA along with our certificate,
 * which the real Curator refuses (C2: exactly one client certificate).
 *
 * Guarantees that no byte of HTTP/2 goes out before the Curator's certificate was judged, that TLS is 1.3 and no
 * session is resumed (a resumed one has no certificate to judge), and that the credentials are read anew for each
 * connection. gRPC can get its connection from `connect` below and nowhere else: should another version of it call
 * another hook, there is no connection at all.
 *
 * Seen with Bun 1.4.5 and grpc-js 1.14.7: without `ca` and with `rejectUnauthorized: false` exactly one certificate is
 * sent; `checkServerIdentity` is then never called.
 */
import { type CallCredentials, ChannelCredentials, credentials, type experimental } from "@grpc/grpc-js";
import { X509Certificate } from "node:crypto";
import type { Socket } from "node:net";
import { connect, type TLSSocket } from "node:tls";
import type { NodeId } from "../core/node.ts";
import { quote, quotePath } from "../core/problem.ts";
import { ClusternetError, messageOf } from "../errors.ts";
import { judgeCertificates } from "../trust/certificate.ts";
import type { CredentialFiles } from "../trust/credential-files.ts";
import { readCredentials, revealKey, type Credentials } from "../trust/credentials.ts";
import { sentCertificateBytes } from "../trust/sent-certificates.ts";

export interface TlsOptions {
  readonly files: CredentialFiles;
  /** Who we are: credentials that came to name another node are not used. */
  readonly self: NodeId;
  /** Only these nodes are accepted as Curators; undefined: every node of the cluster. */
  readonly curatorIds?: readonly NodeId[];
  /** Only this node is accepted: the one that was said to lead. */
  readonly expectedId?: NodeId;
  /** For the handshake; the whole connection attempt has its own limit. */
  readonly handshakeMs: number;
}

/** The name in the handshake. The server does not look at it, but Bun takes no IP address for one. */
const serverName = "curator";

/** The other side is not a Curator of this cluster. */
export class UntrustedError extends ClusternetError {
  override readonly name = "UntrustedError";
}

/**
 * Credentials of one channel. `refusal` is the last one: gRPC hands on no more than name and message of an error.
 */
export class NodeCredentials extends ChannelCredentials {
  refusal: UntrustedError | undefined;
  readonly #options: TlsOptions;

  constructor(options: TlsOptions) {
    super();
    requireHook(credentials.createInsecure());
    this.#options = options;
  }

  override _isSecure(): boolean {
    return true;
  }

  override _equals(other: ChannelCredentials): boolean {
    return this === other;
  }

  override compose(): ChannelCredentials {
    throw new Error("node credentials are all that a Curator is told");
  }

  override _createSecureConnector(
    _target: unknown,
    _options: unknown,
    callCredentials?: CallCredentials,
  ): experimental.SecureConnector {
    const ended = new AbortController();
    let own: Credentials | undefined;
    return {
      // Called before the TCP connection is made: nobody listens to the socket's errors while files are read.
      waitForReady: async () => {
        own = await this.#readOwn();
      },
      getCallCredentials: () => callCredentials ?? credentials.createEmpty(),
      destroy: () => ended.abort(),
      connect: async (socket) => {
        if (own === undefined) throw new Error("connect was called before waitForReady");
        return { socket: await this.#connect(socket, own, ended.signal), secure: true };
      },
    };
  }

  async #readOwn(): Promise<Credentials> {
    const { files, self } = this.#options;
    const own = await readCredentials(files);
    if (own.nodeId !== self) {
      throw new ClusternetError(
        `Cannot use node certificate ${quotePath(files.cert)}: it now names node ${quote(own.nodeId)}, expected ${quote(self)}`,
        { hint: "Start the program again to take part as another node" },
      );
    }
    return own;
  }

  async #connect(socket: Socket, own: Credentials, signal: AbortSignal): Promise<TLSSocket> {
    const { handshakeMs } = this.#options;
    const secure = await shakeHands(
      socket,
      { cert: own.certificate.toString(), key: revealKey(own.key) },
      AbortSignal.any([signal, AbortSignal.timeout(handshakeMs)]),
    );
    let judged = false;
    try {
      const reason = refusalOf(secure, own.ca, this.#options);
      judged = reason === undefined;
      if (reason === undefined) return secure;
      this.refusal = new UntrustedError(reason);
      throw this.refusal;
    } finally {
      if (!judged) secure.destroy();
    }
  }
}

/**
 * Throws when gRPC's credentials no longer make connections by the method that is replaced here: with another one gRPC
 * would find none of ours to call, and say so in the middle of something.
 */
export function requireHook(ofGrpc: object): void {
  const hook: unknown = Reflect.get(ofGrpc, "_createSecureConnector");
  if (typeof hook === "function") return;
  throw new Error("Cannot use TLS: this version of grpc-js makes its connections in another way");
}

/** TLS over a connected socket. Rejects when it fails or `signal` aborts; the socket is closed then. */
function shakeHands(
  socket: Socket,
  identity: { readonly cert: string; readonly key: string },
  signal: AbortSignal,
): Promise<TLSSocket> {
  return new Promise((resolve, reject) => {
    const secure = connect({
      socket,
      ...identity,
      // Judged below instead, before the socket is given away.
      rejectUnauthorized: false,
      minVersion: "TLSv1.3",
      ALPNProtocols: ["h2"],
      servername: serverName,
    });
    const fail = (error: Error): void => {
      signal.removeEventListener("abort", abort);
      secure.destroy();
      reject(error);
    };
    const abort = (): void => fail(new ClusternetError("the TLS handshake did not end in time"));
    const close = (): void => fail(new ClusternetError("the connection was closed in the TLS handshake"));
    secure.once("error", fail);
    secure.once("close", close);
    signal.addEventListener("abort", abort, { once: true });
    if (signal.aborted) return abort();
    secure.once("secureConnect", () => {
      signal.removeEventListener("abort", abort);
      secure.removeListener("close", close);
      // `fail` stays for errors: until HTTP/2 listens, one without a listener would end the program.
      resolve(secure);
    });
  });
}

/** Why the other side is no Curator for us; undefined: it is one. */
function refusalOf(
  secure: TLSSocket,
  ca: X509Certificate,
  { curatorIds, expectedId }: Pick<TlsOptions, "curatorIds" | "expectedId">,
): string | undefined {
  const version = secure.getProtocol();
  if (version !== "TLSv1.3") return `it speaks ${version ?? "no known TLS"}, expected TLSv1.3`;
  if (secure.isSessionReused()) return "the TLS session is an old one, expected a new one";
  let sent: readonly X509Certificate[];
  try {
    sent = sentCertificateBytes(secure).map((raw) => new X509Certificate(raw));
  } catch (error) {
    return `it sent a certificate that cannot be decoded: ${messageOf(error)}`;
  }
  const verdict = judgeCertificates(sent, { ca, now: new Date() });
  if (verdict.kind !== "node") return verdict.reason;
  const { nodeId } = verdict;
  const found = `its certificate is that of node ${quote(nodeId)}`;
  if (expectedId !== undefined && nodeId !== expectedId) {
    return `${found}, expected ${quote(expectedId)}, which was said to lead`;
  }
  if (curatorIds === undefined || curatorIds.includes(nodeId)) return undefined;
  return `${found}, expected ${curatorIds.map((id) => quote(id)).join(" or ")} (--curator-id)`;
}
