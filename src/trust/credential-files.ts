/**
 * Which files the credentials of a node are (C3), without reading any: what the command line needs to know.
 */

import { join } from "node:path";

/** Paths of the credentials. */
export interface CredentialFiles {
  /** Certificate of the cluster CA. */
  readonly ca: string;
  /** Certificate of the node. */
  readonly cert: string;
  /** Private key of that certificate, PKCS#8. */
  readonly key: string;
}

/** All of them; none without TLS. */
export function pathsOf(files: CredentialFiles | undefined): readonly string[] {
  return files === undefined ? [] : [files.ca, files.cert, files.key];
}

/** Where they are in a node's data directory unless it is told otherwise. */
const credentialsDirectory = "credentials";

/** Names of the files in a directory of credentials. */
export const credentialNames = { ca: "ca.pem", cert: "cert.pem", key: "cert-key.pem" } as const;

/** The files in a node's data directory. */
export function credentialsIn(dataDirectory: string): CredentialFiles {
  const inside = (name: string): string => join(dataDirectory, credentialsDirectory, name);
  return {
    ca: inside(credentialNames.ca),
    cert: inside(credentialNames.cert),
    key: inside(credentialNames.key),
  };
}
