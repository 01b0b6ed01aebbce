/**
 * Clients that send whatever certificates a test wants, and trust any server: what our Curator must be ready for.
 */
import { credentials } from "@grpc/grpc-js";
import type { X509Certificate } from "node:crypto";
import { connect, createSecureContext } from "node:tls";
import { createChannel, createClientFactory, type Channel } from "nice-grpc";
import { CuratorLocalDefinition } from "../../src/gen/curator.ts";
import { revealKey } from "../../src/trust/credentials.ts";
import type { KeyedCertificate } from "../../src/trust/make-certificate.ts";

export interface ClientIdentity extends KeyedCertificate {
  readonly sentAlong?: readonly X509Certificate[];
  /** As a client that is given it as trusted: the TLS library then sends it along (Bun 1.4.5). */
  readonly ca?: X509Certificate;
}

/** A channel with this identity, or without any. Close it. */
export function tlsChannel(port: number, identity?: ClientIdentity): Channel {
  const context = createSecureContext(
    identity === undefined
      ? {}
      : {
          cert: [identity.certificate, ...(identity.sentAlong ?? [])].join("\n"),
          key: revealKey(identity.key),
          ...(identity.ca === undefined ? {} : { ca: identity.ca.toString() }),
        },
  );
  return createChannel(
    `127.0.0.1:${port}`,
    credentials.createFromSecureContext(context, { rejectUnauthorized: false }),
    { "grpc.ssl_target_name_override": "curator", "grpc.use_local_subchannel_pool": 1 },
  );
}

/** Serial number of the certificate that a new connection is shown. */
export function shownSerial(port: number): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  const options = { port, host: "127.0.0.1", rejectUnauthorized: false, servername: "curator" };
  const socket = connect({ ...options, ALPNProtocols: ["h2"] }, () => {
    resolve(socket.getPeerCertificate().serialNumber);
    socket.destroy();
  });
  socket.on("error", reject);
  return promise;
}

/** Whom GetCurrentLeader names over this channel. */
export async function leaderOver(channel: Channel): Promise<string> {
  const stop = new AbortController();
  const local = createClientFactory().create(CuratorLocalDefinition, channel);
  for await (const { leaderNodeId } of local.getCurrentLeader({}, { signal: stop.signal }))
    return leaderNodeId;
  throw new Error("nobody leads");
}
