/** WireGuard keys: strict texts, the same public key as `wg pubkey`, and no way to print a private key. */
import { describe, expect, test } from "bun:test";
import { inspect } from "node:util";
import * as fc from "fast-check";
import { parsePrivateKey, parsePublicKey, privateKeyFromBytes, secretForms } from "../../src/core/key.ts";
import { describeError } from "../../src/errors.ts";

/** Made by `wg genkey` and `wg pubkey` of wireguard-tools 1.0.20210914, for these tests only. */
const pairs = [
  {
    privateKey: "4EiRyczG7JsDpEkNp1BX4Hym2q6vo/odl/TQZEwX8EU=",
    publicKey: "VfaQ2XwhYF0VPqzVU718Rw2zLVk0rxg4vym3bU1FaWk=",
  },
  {
    privateKey: "UIgluBmwjN6tAkSUsqIOoTLAMs1v9XpJPyIzxfib52Y=",
    publicKey: "k/TBdEkrtSoHTi5NQxoQM1/bKQwaVd0HtZwKAQMWamI=",
  },
  {
    privateKey: "qAGaHyYLUGnfG+1Y0EugxD0mj5wOBrpOQxhlFp0fAXE=",
    publicKey: "KgmK8SJ2uPJgPUEu3hAAkgI4WBvPlad+F9T9mosyNUA=",
  },
  {
    privateKey: "cFFgForE4E0EDow3pqy6cMz2pg9/jtC1YUMXMVWWWUs=",
    publicKey: "IiiyLL3F4sAlXj8oH9rMVb04FYCVqdf9XwVgKyw4Ukk=",
  },
] as const;

/** As a template or a logger would print it, whatever its type says. */
function printed(value: unknown): string {
  return String(value);
}

/** A valid public key, for damaging. */
const valid = pairs[0].publicKey;

describe("public keys", () => {
  test("parsePublicKey() takes what wg made", () => {
    for (const { publicKey } of pairs) expect<string>(parsePublicKey(publicKey)).toBe(publicKey);
  });

  test.each([
    ["", "0 characters, expected 44 of base64"],
    ["AAAA", "4 characters, expected 44 of base64"],
    [valid.slice(0, 43), "43 characters, expected 44 of base64"],
    [`${valid}\n`, "45 characters, expected 44 of base64"],
    [` ${valid.slice(1)}`, "has white space inside, expected base64"],
    [`${valid.slice(0, 20)}\n${valid.slice(21)}`, "has white space inside, expected base64"],
    [
      // The last character before "=" has two bits that must be zero.
      "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB=",
      "not canonical base64, expected 43 characters of A-Z a-z 0-9 + / and one =",
    ],
    [
      valid.replace(/[+/]|^./, "-"),
      "not canonical base64, expected 43 characters of A-Z a-z 0-9 + / and one =",
    ],
    [`${valid.slice(0, 41)}Q==`, "31 bytes, expected 32"],
    [`${valid.slice(0, 43)}A`, "33 bytes, expected 32"],
    [
      `${valid.slice(0, 40)}\u001b[1m`,
      "not canonical base64, expected 43 characters of A-Z a-z 0-9 + / and one =",
    ],
    ["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "all zero, which WireGuard takes as no key"],
  ])("parsePublicKey(%j) refuses", (text, reason) => {
    expect(() => parsePublicKey(text)).toThrow(`Cannot parse public key: ${reason}`);
  });

  test("two texts that parse as public keys are the same bytes only when they are the same text", () => {
    const bytes = fc.uint8Array({ minLength: 32, maxLength: 32 });
    fc.assert(
      fc.property(
        bytes,
        fc.nat(43),
        fc.constantFrom(...Array.from("AZaz09+/=-_ \n")),
        (key, at, character) => {
          const text = key.toBase64();
          const changed = text.slice(0, at) + character + text.slice(at + 1);
          fc.pre(changed !== text);
          let parsed: string | undefined;
          try {
            parsed = parsePublicKey(changed);
          } catch {
            return;
          }
          expect(Uint8Array.fromBase64(parsed)).not.toEqual(key);
        },
      ),
      { numRuns: 3_000 },
    );
  });
});

describe("private keys", () => {
  test.each(pairs)("parsePrivateKey() of $privateKey gives the public key that wg gives", (pair) => {
    const key = parsePrivateKey(pair.privateKey);
    expect([key.reveal(), key.publicKey]).toEqual([pair.privateKey, pair.publicKey]);
  });

  test.each(["\n", " ", "\r\n", "\t\n\n"])("parsePrivateKey() accepts %j at the end", (end) => {
    expect(parsePrivateKey(pairs[0].privateKey + end).reveal()).toBe(pairs[0].privateKey);
  });

  test("public keys are those of wg pubkey, also of keys that are not clamped", async () => {
    const wg = Bun.which("wg");
    if (wg === null) throw new Error("wg is not in PATH: install wireguard-tools");
    for (const bytes of fc.sample(fc.uint8Array({ minLength: 32, maxLength: 32 }), 20)) {
      if (bytes.every((byte) => byte === 0)) continue;
      const text = bytes.toBase64();
      const child = Bun.spawn([wg, "pubkey"], {
        stdin: new Blob([`${text}\n`]),
        stdout: "pipe",
        stderr: "pipe",
      });
      const publicKey = (await new Response(child.stdout).text()).trimEnd();
      expect(await child.exited).toBe(0);
      expect<string>(parsePrivateKey(text).publicKey).toBe(publicKey);
      expect<string>(privateKeyFromBytes(bytes).publicKey).toBe(publicKey);
    }
  });

  test("secretForms() are those of the files, without the sign at the end, and of WireGuard's socket", () => {
    expect(secretForms(parsePrivateKey(pairs[0].privateKey))).toEqual([
      "4EiRyczG7JsDpEkNp1BX4Hym2q6vo/odl/TQZEwX8EU=",
      "4EiRyczG7JsDpEkNp1BX4Hym2q6vo/odl/TQZEwX8EU",
      "e04891c9ccc6ec9b03a4490da75057e07ca6daaeafa3fa1d97f4d0644c17f045",
    ]);
  });

  test("privateKeyFromBytes() clamps as wg genkey does", () => {
    const bytes = Uint8Array.fromBase64(privateKeyFromBytes(new Uint8Array(32).fill(0xff)).reveal());
    expect([bytes[0], bytes[1], bytes[31]]).toEqual([0xf8, 0xff, 0x7f]);
    expect(() => privateKeyFromBytes(new Uint8Array(31))).toThrow(
      "Cannot make private key: 31 bytes, expected 32",
    );
  });

  test("a private key shows in nothing that prints it", () => {
    const secret = pairs[0].privateKey;
    const key = parsePrivateKey(secret);
    const shown = [
      printed(key),
      JSON.stringify({ key, list: [key] }),
      inspect(key),
      inspect({ key, deep: { list: [key] } }, { showHidden: true, depth: 9 }),
      Bun.inspect({ key }),
      JSON.stringify(Object.entries(key)),
      JSON.stringify({ ...key }),
      new Error("with a key", { cause: key }).cause?.toString() ?? "",
    ];
    for (const text of shown) expect(text).not.toContain(secret);
    expect(printed(key)).toBe("[redacted]");
    expect(inspect({ key })).toBe("{ key: [redacted] }");
  });

  test.each([
    ["", "0 characters"],
    [pairs[0].privateKey.slice(0, 20), "20 characters"],
    [`${pairs[0].privateKey}A`, "45 characters"],
    [pairs[0].privateKey.replace(/[a-z]/, "!"), "not canonical base64"],
    [`\n${pairs[0].privateKey}`, "45 characters"],
    [`PrivatKey = ${pairs[0].privateKey}`, "56 characters"],
    ["AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", "all zero"],
  ])("parsePrivateKey() refuses %j and quotes none of it", (text, found) => {
    let shown = "";
    try {
      parsePrivateKey(text);
    } catch (error) {
      shown = `${describeError(error)}\n${inspect(error)}`;
    }
    expect(shown).toStartWith(`Cannot parse private key: ${found}`);
    // The stack names no argument either; six characters in a row are no accident.
    for (let at = 0; at + 6 <= text.length; at++) {
      const piece = text.slice(at, at + 6);
      if (/^[A-Za-z0-9+/]{6}$/.test(piece) && !"PrivatKey".includes(piece))
        expect(shown).not.toContain(piece);
    }
  });
});
