/**
 * Makes X.509 certificates in the form in which a Metropolis cluster makes them, so that ours and its own are taken by
 * the same programs: Ed25519, version 3, a random serial number of 128 bits, key usage and basic constraints critical,
 * the subject's key identifier on a CA only, valid until the last second of the year 9999.
 *
 * Loaded by `clusternet pki` alone: the ASN.1 library costs every start that needs none of it.
 */
import { AsnConvert, OctetString } from "@peculiar/asn1-schema";
import {
  AlgorithmIdentifier,
  AttributeTypeAndValue,
  AttributeValue,
  AuthorityKeyIdentifier,
  BasicConstraints,
  Certificate,
  ExtendedKeyUsage,
  Extension,
  Extensions,
  GeneralName,
  id_ce_authorityKeyIdentifier,
  id_ce_basicConstraints,
  id_ce_extKeyUsage,
  id_ce_keyUsage,
  id_ce_subjectAltName,
  id_ce_subjectKeyIdentifier,
  KeyIdentifier,
  KeyUsage,
  KeyUsageFlags,
  Name,
  RelativeDistinguishedName,
  SubjectAlternativeName,
  SubjectKeyIdentifier,
  SubjectPublicKeyInfo,
  TBSCertificate,
  Validity,
  Version,
} from "@peculiar/asn1-x509";
import { createHash, generateKeyPairSync, sign, type KeyObject, X509Certificate } from "node:crypto";
import { purpose } from "./certificate.ts";

/** A certificate and the private key that belongs to it. */
export interface KeyedCertificate {
  readonly certificate: X509Certificate;
  readonly key: KeyObject;
}

/** What a certificate says. */
export interface CertificateContent {
  /** Empty: the certificate names nobody. */
  readonly commonName: string;
  /** The one DNS name; none when left out. */
  readonly dnsName?: string;
  readonly isCa: boolean;
  /** Extended key usage, as object identifiers. */
  readonly purposes: readonly string[];
  readonly publicKey: KeyObject;
  readonly notBefore: Date;
  readonly notAfter: Date;
}

/** The end of time as RFC 5280 spells "never". */
export const endOfTime = new Date("9999-12-31T23:59:59Z");

const ed25519 = "1.3.101.112";
const commonNameType = "2.5.4.3";

/** A new cluster CA that signs itself. */
export function makeClusterCa(now: Date): KeyedCertificate {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const certificate = signCertificate(
    {
      commonName: "clusternet cluster CA",
      isCa: true,
      purposes: [purpose.clientAuth, purpose.serverAuth, purpose.ocspSigning],
      publicKey,
      notBefore: now,
      notAfter: endOfTime,
    },
    { key: privateKey },
  );
  return { certificate, key: privateKey };
}

/** A new key and certificate for a node. */
export function makeNodeCertificate(nodeId: string, ca: KeyedCertificate, now: Date): KeyedCertificate {
  const { publicKey, privateKey } = generateKeyPairSync("ed25519");
  const certificate = signCertificate(
    {
      commonName: nodeId,
      dnsName: nodeId,
      isCa: false,
      purposes: [purpose.serverAuth],
      publicKey,
      notBefore: now,
      notAfter: endOfTime,
    },
    ca,
  );
  return { certificate, key: privateKey };
}

/** Signs with an Ed25519 key; without the signer's certificate the new one is its own issuer. */
export function signCertificate(
  content: CertificateContent,
  signer: { readonly key: KeyObject; readonly certificate?: X509Certificate },
): X509Certificate {
  const algorithm = new AlgorithmIdentifier({ algorithm: ed25519 });
  const subject = nameOf(content.commonName);
  const publicKey = AsnConvert.parse(
    content.publicKey.export({ type: "spki", format: "der" }),
    SubjectPublicKeyInfo,
  );
  const issuer =
    signer.certificate === undefined ? undefined : AsnConvert.parse(signer.certificate.raw, Certificate);
  const body = new TBSCertificate({
    version: Version.v3,
    serialNumber: randomSerial(),
    signature: algorithm,
    issuer: issuer?.tbsCertificate.subject ?? subject,
    validity: new Validity({ notBefore: content.notBefore, notAfter: content.notAfter }),
    subject,
    subjectPublicKeyInfo: publicKey,
    extensions: new Extensions(extensionsOf(content, publicKey, issuer?.tbsCertificate.subjectPublicKeyInfo)),
  });
  const signed = new Certificate({
    tbsCertificate: body,
    signatureAlgorithm: algorithm,
    signatureValue: bufferOf(sign(null, Buffer.from(AsnConvert.serialize(body)), signer.key)),
  });
  return new X509Certificate(Buffer.from(AsnConvert.serialize(signed)));
}

function extensionsOf(
  content: CertificateContent,
  own: SubjectPublicKeyInfo,
  issuer: SubjectPublicKeyInfo | undefined,
): Extension[] {
  const { digitalSignature, keyEncipherment, keyCertSign, cRLSign } = KeyUsageFlags;
  const usage = content.isCa ? digitalSignature | keyCertSign | cRLSign : digitalSignature | keyEncipherment;
  return [
    extension(id_ce_keyUsage, new KeyUsage(usage), true),
    extension(id_ce_extKeyUsage, new ExtendedKeyUsage([...content.purposes])),
    extension(id_ce_basicConstraints, new BasicConstraints({ cA: content.isCa }), true),
    ...(content.isCa
      ? [extension(id_ce_subjectKeyIdentifier, new SubjectKeyIdentifier(keyIdentifier(own)))]
      : []),
    ...(issuer === undefined
      ? []
      : [
          extension(
            id_ce_authorityKeyIdentifier,
            new AuthorityKeyIdentifier({ keyIdentifier: new KeyIdentifier(keyIdentifier(issuer)) }),
          ),
        ]),
    ...(content.dnsName === undefined
      ? []
      : [
          extension(
            id_ce_subjectAltName,
            new SubjectAlternativeName([new GeneralName({ dNSName: content.dnsName })]),
          ),
        ]),
  ];
}

function extension(extnID: string, value: object, critical = false): Extension {
  return new Extension({ extnID, critical, extnValue: new OctetString(AsnConvert.serialize(value)) });
}

/** SHA-1 of the key, as RFC 5280 has it and Metropolis makes it: a name for it, nothing is secured by it. */
function keyIdentifier({ subjectPublicKey }: SubjectPublicKeyInfo): ArrayBuffer {
  return bufferOf(createHash("sha1").update(Buffer.from(subjectPublicKey)).digest());
}

function nameOf(commonName: string): Name {
  if (commonName === "") return new Name([]);
  // What ASN.1 calls a printable string, and Go writes as one: equal names are then equal bytes.
  const isPrintable = /^[A-Za-z0-9 '()+,\-./:=?]+$/.test(commonName);
  const value = new AttributeValue(
    isPrintable ? { printableString: commonName } : { utf8String: commonName },
  );
  return new Name([
    new RelativeDistinguishedName([new AttributeTypeAndValue({ type: commonNameType, value })]),
  ]);
}

/** 128 bits that read as a positive number without a zero byte in front. */
function randomSerial(): ArrayBuffer {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[0] = (bytes[0] ?? 0) & 0x7f || 1;
  return bytes.buffer;
}

function bufferOf(bytes: Uint8Array): ArrayBuffer {
  return new Uint8Array(bytes).buffer;
}
