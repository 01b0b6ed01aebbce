/**
 * WireGuard keys: strict base64, and types that keep public and private apart.
 *
 * A private key is an object that prints as "[redacted]" wherever it is logged, thrown or serialized; its text
 * comes out by `reveal()` alone.
 */

declare const publicKeyBrand: unique symbol;
/** 44 characters of canonical base64, 32 bytes, not all zero. Equal texts are equal bytes. */
export type PublicKey = string & { readonly [publicKeyBrand]: true };

export interface PrivateKey {
  /** The base64 text. Call it only where the secret must be written: key file and configuration file. */
  reveal(): string;
  readonly publicKey: PublicKey;
}

/** Parses a public key by C4.6. Throws ClusternetError whose message starts "public key …" facts: what was found and expected. */
export function parsePublicKey(_text: string): PublicKey {
  throw new Error("unwritten");
}

/** Parses a private key: 44 characters of base64, white space at the end accepted. No message shows any of it. Throws ClusternetError. */
export function parsePrivateKey(_text: string): PrivateKey {
  throw new Error("unwritten");
}

/** A private key of 32 random bytes (clamped by X25519 as `wg genkey` does). */
export function privateKeyFromBytes(_bytes: Uint8Array): PrivateKey {
  throw new Error("unwritten");
}
