/**
 * The certificates that the other side of a TLS connection sent, whether or not the TLS library approves of them.
 */
import type { PeerCertificate, TLSSocket } from "node:tls";

/** So many certificates of a chain are looked at: more than one is refused or ignored anyway. */
const maxChain = 8;

/**
 * All of them as DER, the other side's own first. Counts truly only on a connection without `ca`: with one, the TLS
 * library (Bun 1.4.5) adds the CA that it found itself.
 */
export function sentCertificateBytes(secure: TLSSocket): readonly Uint8Array[] {
  const sent: Uint8Array[] = [];
  let next: (PeerCertificate & { readonly issuerCertificate?: PeerCertificate }) | undefined =
    secure.getPeerCertificate(true);
  // Without any the library returns an empty object, and at the end of a chain perhaps the last one again.
  while (next?.raw !== undefined && sent.length < maxChain) {
    sent.push(next.raw);
    next = next.issuerCertificate === next ? undefined : next.issuerCertificate;
  }
  return sent;
}
