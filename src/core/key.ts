/**
 * WireGuard keys: strict base64, and types that keep public and private apart.
 *
 * A private key is an object that prints as "[redacted]" wherever it is logged, thrown or serialized; its text
 * comes out by `reveal()` alone. No message here shows any character of what was parsed as a private key.
 */
import { x25519 } from "@noble/curves/ed25519.js";
import { ClusternetError } from "../errors.ts";
import type { Unreadable } from "./prefix.ts";

declare const publicKeyBrand: unique symbol;
/** 44 characters of canonical base64, 32 bytes, not all zero. Equal texts are equal bytes. */
export type PublicKey = string & { readonly [publicKeyBrand]: true };

export interface PrivateKey {
  /** The base64 text. Call it only where the secret must be written, key file and configuration file, or hidden. */
  reveal(): string;
  readonly publicKey: PublicKey;
}

/** Bytes of a key. */
const keyBytes = 32;
/** Characters of a key in base64. */
const keyCharacters = 44;

/** 32 bytes in base64, of which the last character but one stands for four bits. */
const keyForm = /^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$/;
const zeroKey = `${"A".repeat(43)}=`;

/** Parses a public key by C4.6. Throws ClusternetError that says what was found and expected. */
export function parsePublicKey(text: string): PublicKey {
  const key = decodePublicKey(text);
  if (typeof key !== "string") throw new ClusternetError(`Cannot parse public key: ${key.reason}`);
  return key;
}

/** `parsePublicKey` with the reason as a value. */
export function decodePublicKey(text: string): PublicKey | Unreadable {
  // Of nearly every key, without its bytes. Strict base64 has one text for every 32 bytes, so the text itself can be the key.
  if (keyForm.test(text) && text !== zeroKey) return text as PublicKey;
  const bytes = decodeKeyBytes(text);
  if ("reason" in bytes) return bytes;
  if (isZero(bytes)) return { reason: zeroReason };
  return text as PublicKey;
}

/** Parses a private key: 44 characters of base64, white space at the end accepted. No message shows any of it. Throws ClusternetError. */
export function parsePrivateKey(text: string): PrivateKey {
  const trimmed = text.trimEnd();
  const bytes = decodeKeyBytes(trimmed);
  if ("reason" in bytes) throw new ClusternetError(`Cannot parse private key: ${bytes.reason}`);
  if (isZero(bytes)) throw new ClusternetError(`Cannot parse private key: ${zeroReason}`);
  // The text stays as it was found: written back, the key file has the bytes it had.
  // As getPublicKey, which first makes a table for many keys: 50 ms at every start for the one that there is.
  const publicKey = x25519.scalarMult(bytes, x25519.GuBytes);
  return new RedactedKey(trimmed, publicKey.toBase64() as PublicKey);
}

/** A private key of 32 random bytes, clamped by X25519 as `wg genkey` does: the text is then what `wg show` prints. */
export function privateKeyFromBytes(bytes: Uint8Array): PrivateKey {
  if (bytes.length !== keyBytes) {
    throw new ClusternetError(`Cannot make private key: ${bytes.length} bytes, expected ${keyBytes}`);
  }
  const scalar = bytes.map((byte, index) => {
    if (index === 0) return byte & 0b1111_1000;
    return index === keyBytes - 1 ? (byte & 0b0111_1111) | 0b0100_0000 : byte;
  });
  return parsePrivateKey(scalar.toBase64());
}

/**
 * The forms in which a key can come into a text by mistake, for a log that is to hide them: base64 as in the files,
 * without the sign at its end, and hex as WireGuard's socket has it.
 */
export function secretForms(key: PrivateKey): readonly string[] {
  const text = key.reveal();
  return [text, text.slice(0, -1), Uint8Array.fromBase64(text).toHex()];
}

class RedactedKey implements PrivateKey {
  // A private field: it shows in no JSON, no spread, no inspection and no debugger output of its owner.
  readonly #text: string;
  readonly publicKey: PublicKey;

  constructor(text: string, publicKey: PublicKey) {
    this.#text = text;
    this.publicKey = publicKey;
  }

  reveal(): string {
    return this.#text;
  }

  toString(): string {
    return "[redacted]";
  }

  toJSON(): string {
    return "[redacted]";
  }

  // What Node and Bun call to print a value; the symbol is registered, so no import is needed.
  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return "[redacted]";
  }
}

const zeroReason = "all zero, which WireGuard takes as no key";

function isZero(bytes: Uint8Array): boolean {
  return bytes.every((byte) => byte === 0);
}

/** The bytes of a key in strict base64, or what is wrong without showing any of it. */
function decodeKeyBytes(text: string): Uint8Array | Unreadable {
  if (text.length !== keyCharacters) {
    return { reason: `${text.length} characters, expected ${keyCharacters} of base64` };
  }
  // fromBase64 skips white space, which would give one key many texts.
  if (/\s/.test(text)) return { reason: "has white space inside, expected base64" };
  let bytes: Uint8Array;
  try {
    bytes = Uint8Array.fromBase64(text, { lastChunkHandling: "strict" });
  } catch {
    // The error is left out: whatever it may quote could be a private key.
    return { reason: "not canonical base64, expected 43 characters of A-Z a-z 0-9 + / and one =" };
  }
  return bytes.length === keyBytes ? bytes : { reason: `${bytes.length} bytes, expected ${keyBytes}` };
}
