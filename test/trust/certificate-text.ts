/**
 * A certificate as `openssl x509 -text` prints it, so that ours can be compared with those of a real cluster
 * (test/fixtures/credentials). It reads the bytes and knows nothing of how they were made.
 */
import { AsnConvert } from "@peculiar/asn1-schema";
import {
  AuthorityKeyIdentifier,
  BasicConstraints,
  Certificate,
  ExtendedKeyUsage,
  type Extension,
  KeyUsage,
  type Name,
  SubjectAlternativeName,
  SubjectKeyIdentifier,
  type Time,
} from "@peculiar/asn1-x509";
import type { X509Certificate } from "node:crypto";

/** Everything that differs from one certificate of a kind to the next is a word in brackets. */
export function maskText(text: string): string {
  return text
    .replaceAll(
      /(?<![0-9a-f:])(?:[0-9a-f]{2}:\s*){15,}[0-9a-f]{2}/gi,
      (bytes) => `[${bytes.match(/[0-9a-f]{2}/gi)?.length} bytes]`,
    )
    .replaceAll(/(?<=(?:Not Before|Not After )\s*: )(?!.* 9999 ).*$/gm, "[time]")
    .replaceAll(/(?<=CN = ).*$/gm, "[name]")
    .replaceAll(/(?<=DNS:).*$/gm, "[name]")
    .replaceAll(/\s+/g, " ")
    .trim();
}

/** The text of a certificate, but for indentation. */
export function renderCertificate(certificate: X509Certificate): string {
  const {
    tbsCertificate: body,
    signatureAlgorithm,
    signatureValue,
  } = AsnConvert.parse(certificate.raw, Certificate);
  const { subjectPublicKeyInfo: subjectKey, validity } = body;
  return `Certificate:
Data:
Version: ${body.version + 1} (0x${body.version})
Serial Number:
${hex(body.serialNumber)}
Signature Algorithm: ${algorithm(body.signature.algorithm)}
Issuer: ${name(body.issuer)}
Validity
Not Before: ${time(validity.notBefore)}
Not After : ${time(validity.notAfter)}
Subject: ${name(body.subject)}
Subject Public Key Info:
Public Key Algorithm: ${algorithm(subjectKey.algorithm.algorithm)}
ED25519 Public-Key:
pub:
${hex(subjectKey.subjectPublicKey)}
X509v3 extensions:
${body.extensions?.map(extension).join("\n")}
Signature Algorithm: ${algorithm(signatureAlgorithm.algorithm)}
Signature Value:
${hex(signatureValue)}`;
}

function algorithm(id: string): string {
  return id === "1.3.101.112" ? "ED25519" : id;
}

function hex(bytes: ArrayBuffer): string {
  return [...new Uint8Array(bytes)].map((byte) => byte.toString(16).padStart(2, "0")).join(":");
}

function name(parts: Name): string {
  return [...parts]
    .flatMap((part) => [...part])
    .map(({ type, value }) => `${type === "2.5.4.3" ? "CN" : type} = ${value.toString()}`)
    .join(", ");
}

function time(value: Time): string {
  const months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
  const date = value.getTime();
  const clock = date.toISOString().slice(11, 19);
  // RFC 5280: two digits of the year until 2049, and four from then on.
  const form = date.getUTCFullYear() < 2050 ? value.utcTime : value.generalTime;
  if (form === undefined) throw new Error(`${date.toISOString()} is written in the wrong form`);
  return `${months[date.getUTCMonth()]} ${String(date.getUTCDate()).padStart(2)} ${clock} ${date.getUTCFullYear()} GMT`;
}

const purposes: Readonly<Record<string, string>> = {
  "1.3.6.1.5.5.7.3.1": "TLS Web Server Authentication",
  "1.3.6.1.5.5.7.3.2": "TLS Web Client Authentication",
  "1.3.6.1.5.5.7.3.9": "OCSP Signing",
};
const usages: Readonly<Record<string, string>> = {
  digitalSignature: "Digital Signature",
  keyEncipherment: "Key Encipherment",
  keyCertSign: "Certificate Sign",
  crlSign: "CRL Sign",
};

function extension({ extnID, critical, extnValue }: Extension): string {
  const bytes = extnValue.buffer;
  const mark = critical ? "critical" : "";
  switch (extnID) {
    case "2.5.29.15": {
      const found = AsnConvert.parse(bytes, KeyUsage).toJSON();
      // In the order of the bits, as openssl has them.
      const known = Object.keys(usages).filter((each) => found.some((usage) => usage === each));
      const others = found.filter((each) => usages[each] === undefined);
      return `X509v3 Key Usage: ${mark}\n${[...known.map((each) => usages[each]), ...others].join(", ")}`;
    }
    case "2.5.29.37":
      return `X509v3 Extended Key Usage: ${mark}\n${[...AsnConvert.parse(bytes, ExtendedKeyUsage)].map((each) => purposes[each] ?? each).join(", ")}`;
    case "2.5.29.19": {
      const { cA, pathLenConstraint } = AsnConvert.parse(bytes, BasicConstraints);
      const path = pathLenConstraint === undefined ? "" : `, pathlen:${pathLenConstraint}`;
      return `X509v3 Basic Constraints: ${mark}\nCA:${cA ? "TRUE" : "FALSE"}${path}`;
    }
    case "2.5.29.14":
      return `X509v3 Subject Key Identifier: ${mark}\n${hex(AsnConvert.parse(bytes, SubjectKeyIdentifier).buffer).toUpperCase()}`;
    case "2.5.29.35":
      return `X509v3 Authority Key Identifier: ${mark}\n${hex(AsnConvert.parse(bytes, AuthorityKeyIdentifier).keyIdentifier?.buffer ?? new ArrayBuffer()).toUpperCase()}`;
    case "2.5.29.17":
      return `X509v3 Subject Alternative Name: ${mark}\n${[...AsnConvert.parse(bytes, SubjectAlternativeName)].map((each) => `DNS:${each.dNSName ?? "?"}`).join(", ")}`;
    default:
      return `${extnID}: ${mark}`;
  }
}
