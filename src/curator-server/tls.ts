/**
 * TLS of our Curator: who calls is said by the one certificate of the connection, judged as the real Curator does (C2).
 *
 * Every client may connect, with a certificate or without, since GetCurrentLeader is for everybody; gRPC's own ways
 * are to ask for no certificate, or to refuse those that are for server auth only, which all of this cluster are. So
 * the certificates are taken from the connection before each call and handed to `identify` as metadata, under a name
 * that no caller can know: what a caller sends itself never counts, and without this hook every caller is unknown.
 */
import {
  type Metadata,
  ServerCredentials,
  ServerInterceptingCall,
  type ServerInterceptor,
} from "@grpc/grpc-js";
import { X509Certificate } from "node:crypto";
import { TLSSocket } from "node:tls";
import { Status } from "nice-grpc-common";
import { messageOf } from "../errors.ts";
import { judgeCertificates } from "../trust/certificate.ts";
import { revealKey, type Credentials } from "../trust/credentials.ts";
import { sentCertificateBytes } from "../trust/sent-certificates.ts";
import { curatorNodeId, unauthenticated, type IdentifyCaller } from "./caller.ts";
import type { Transport } from "./server.ts";

/** A transport whose credentials can be replaced while it serves. */
export interface TlsTransport extends Transport {
  /** From now on new connections get this certificate, and every call is judged by this CA. */
  renew(own: Credentials): void;
}

/** TLS with the node's own credentials: the node is the leader, and callers are those that its CA has signed. */
export function tlsTransport(own: Credentials, now: () => Date = () => new Date()): TlsTransport {
  const key = `clusternet-certificates-${crypto.randomUUID()}-bin`;
  const credentials = new RequestingCredentials(own, key);
  let { ca } = own;
  return {
    credentials,
    identify: identifyByCertificate({ key, ca: () => ca, now }),
    leaderId: own.nodeId,
    renew: (next) => {
      ca = next.ca;
      credentials.renew(next);
    },
  };
}

function identifyByCertificate(options: {
  readonly key: string;
  readonly ca: () => X509Certificate;
  readonly now: () => Date;
}): IdentifyCaller {
  const { key, ca, now } = options;
  return ({ metadata }) => {
    const sent = metadata.getAll(key).filter((value) => typeof value !== "string");
    const [raw] = sent;
    if (raw === undefined || sent.length !== 1) {
      const found = sent.length === 0 ? "no client certificate" : `${sent.length} client certificates`;
      return unauthenticated(`Cannot tell who calls: ${found}, expected exactly one`);
    }
    let certificate: X509Certificate;
    try {
      certificate = new X509Certificate(raw);
    } catch (error) {
      return unauthenticated(`Cannot tell who calls: its certificate cannot be decoded: ${messageOf(error)}`);
    }
    const verdict = judgeCertificates([certificate], { ca: ca(), now: now() });
    switch (verdict.kind) {
      case "node":
        return curatorNodeId(verdict.nodeId);
      case "stranger":
        return unauthenticated(`Cannot tell who calls: ${verdict.reason}`);
      case "no-node":
        return { code: Status.PERMISSION_DENIED, message: `Cannot serve this caller: ${verdict.reason}` };
    }
  };
}

/** Asks every client for a certificate and refuses none in the handshake. */
class RequestingCredentials extends ServerCredentials {
  readonly #interceptor: ServerInterceptor;

  constructor(own: Credentials, metadataKey: string) {
    super({ requestCert: true, rejectUnauthorized: false, minVersion: "TLSv1.3" }, contextOf(own));
    this.#interceptor = handOnCertificates(metadataKey);
  }

  renew(own: Credentials): void {
    this.updateSecureContextOptions(contextOf(own));
  }

  override _equals(other: ServerCredentials): boolean {
    return this === other;
  }

  override _getInterceptors(): ServerInterceptor[] {
    return [this.#interceptor];
  }
}

/** Without `ca`: with it the library would send the CA along with the certificate. */
function contextOf({ certificate, key }: Credentials) {
  return { cert: certificate.toString(), key: revealKey(key), minVersion: "TLSv1.3" } as const;
}

/** Puts the certificates of the call's connection into its metadata. */
function handOnCertificates(key: string): ServerInterceptor {
  return (_method, call) => {
    const sent = certificatesOf(call);
    return new ServerInterceptingCall(call, {
      start: (next) => {
        next({
          onReceiveMetadata: (metadata: Metadata, done: (metadata: Metadata) => void) => {
            metadata.remove(key);
            for (const raw of sent) metadata.add(key, Buffer.from(raw));
            done(metadata);
          },
        });
      },
    });
  };
}

/**
 * gRPC shows the certificate of a client only when the TLS library approves of it, so it is taken where gRPC keeps
 * the connection (grpc-js 1.14.7). Not there: no certificate, and the caller is refused.
 */
function certificatesOf(call: object): readonly Uint8Array[] {
  const stream: unknown = "stream" in call ? call.stream : undefined;
  const session = hasProperty(stream, "session") ? stream.session : undefined;
  const socket = hasProperty(session, "socket") ? session.socket : undefined;
  return socket instanceof TLSSocket ? sentCertificateBytes(socket) : [];
}

function hasProperty<Name extends string>(value: unknown, name: Name): value is Record<Name, unknown> {
  return typeof value === "object" && value !== null && name in value;
}
