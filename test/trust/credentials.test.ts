/** The three credential files: what is taken, and which words say what is wrong with which of them. */
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { generateKeyPairSync } from "node:crypto";
import { chmodSync, mkdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { inspect } from "node:util";
import { createLog } from "../../src/log.ts";
import type { CredentialFiles } from "../../src/trust/credential-files.ts";
import { openKeyProblems, readCredentials, redactKey, revealKey } from "../../src/trust/credentials.ts";
import { makeClusterCa } from "../../src/trust/make-certificate.ts";
import { failure, octal } from "../host/temporary.ts";
import { certificateOf, issued, TestTrust, withoutDnsName } from "./cluster.ts";
import { purpose } from "../../src/trust/certificate.ts";

let trust: TestTrust;
let files: CredentialFiles;
beforeEach(() => {
  trust = new TestTrust();
  files = trust.files("a");
});
afterEach(() => trust[Symbol.dispose]());

test("readCredentials() takes what belongs together, and tells no word of the key", async () => {
  const { nodeId, key, ...rest } = await readCredentials(files);
  expect(nodeId).toBe("a" as never);
  const secret = /\n(.{20,})\n/.exec(revealKey(key))?.[1] ?? "none";
  expect(readFileSync(files.key, "utf8")).toContain(secret);
  expect(`${inspect({ key, ...rest })}${JSON.stringify({ key, ...rest })}`).not.toContain(secret);
});

test("redactKey() keeps the key out of the log", async () => {
  const lines: string[] = [];
  const log = createLog({ format: "json", level: "debug" }, (line) => void lines.push(line));
  redactKey(await readCredentials(files), log);
  const pem = readFileSync(files.key, "utf8");
  log.error(`it is ${pem}`, { key: pem });
  expect(lines.join("")).toContain("[redacted]");
  expect(lines.join("")).not.toContain(pem.split("\n")[1] ?? "no key");
});

test.each<{ name: string; change: (path: string) => void; modes: readonly string[] }>([
  { name: "nothing of a key that is its owner's alone", change: () => {}, modes: [] },
  { name: "that everybody may read it", change: (path) => chmodSync(path, 0o644), modes: ["0644"] },
  { name: "that its group may write it", change: (path) => chmodSync(path, 0o620), modes: ["0620"] },
  { name: "nothing of what is not there", change: (path) => rmSync(path), modes: [] },
  {
    name: "nothing of what is no file",
    change: (path) => {
      rmSync(path);
      mkdirSync(path, { mode: 0o755 });
    },
    modes: [],
  },
])("openKeyProblems() tells $name", async ({ change, modes }) => {
  change(files.key);
  expect(await openKeyProblems(files.key)).toEqual(
    modes.map((mode) => ({
      kind: "key-mode",
      message:
        `Key of the node certificate "${files.key}" has mode ${mode}, expected 0600: others may read it and pose as ` +
        "this node; close it to them, and if somebody may have read it make credentials with a new key",
    })),
  );
});

test("readCredentials() takes a key that others may read, and leaves the file alone", async () => {
  chmodSync(files.key, 0o644);
  await readCredentials(files);
  expect(octal(statSync(files.key).mode)).toBe("644");
});

test("readCredentials() takes a certificate that is not valid yet: the clock may be wrong at boot", async () => {
  const own = certificateOf("late", trust.ca, { notBefore: new Date("2126-01-01T00:00:00Z") });
  expect((await readCredentials(trust.files("late", { own }))).nodeId).toBe("late" as never);
});

test("readCredentials() takes files with other line ends, and links to files", async () => {
  writeFileSync(files.cert, readFileSync(files.cert, "utf8").replaceAll("\n", "\r\n"));
  symlinkSync(files.ca, `${files.ca}.link`);
  expect((await readCredentials({ ...files, ca: `${files.ca}.link` })).nodeId).toBe("a" as never);
});

const belong = "CA, certificate and key of a node belong together: take all three from the same place";
const where = "`clusternet pki issue` makes a node's three files; --ca, --cert and --key say where they are";
const keyForm = "expected one Ed25519 key in PKCS#8 (PRIVATE KEY)";

describe("readCredentials() refuses", () => {
  test.each<{ name: string; spoil: () => void; message: () => string; hint: string }>([
    {
      name: "a CA that is not there",
      spoil: () => rmSync(files.ca),
      message: () => `Cannot read cluster CA "${files.ca}": there is no such file`,
      hint: where,
    },
    {
      name: "a certificate that is a directory",
      spoil: () => {
        rmSync(files.cert);
        mkdirSync(files.cert);
      },
      message: () =>
        `Cannot read node certificate "${files.cert}": it is a directory, expected a regular file`,
      hint: where,
    },
    {
      name: "a key that is too large",
      spoil: () => writeFileSync(files.key, "x".repeat(70_000)),
      message: () =>
        `Cannot read key of the node certificate "${files.key}": it has 70000 bytes, expected at most 65536`,
      hint: where,
    },
    {
      name: "a certificate with the CA behind it: two would be sent",
      spoil: () =>
        writeFileSync(files.cert, readFileSync(files.cert, "utf8") + readFileSync(files.ca, "utf8")),
      message: () =>
        `Cannot use node certificate "${files.cert}": it has 2 PEM blocks, 2 of them certificates, expected exactly one certificate`,
      hint: belong,
    },
    {
      name: "a certificate of another cluster",
      spoil: () => writeFileSync(files.ca, makeClusterCa(issued).certificate.toString()),
      message: () =>
        `Cannot use node certificate "${files.cert}": its certificate is signed by another CA of the same name, ` +
        'expected the cluster CA "CN=clusternet cluster CA" of Jan  1 00:00:00 2026 GMT',
      hint: belong,
    },
    {
      name: "a node's certificate as CA",
      spoil: () => writeFileSync(files.ca, readFileSync(files.cert)),
      message: () => `Cannot use cluster CA "${files.ca}": it is the certificate of "CN=a", which is no CA`,
      hint: belong,
    },
    {
      name: "the CA as certificate",
      spoil: () => writeFileSync(files.cert, readFileSync(files.ca)),
      message: () =>
        `Cannot use node certificate "${files.cert}": it is the cluster CA's own certificate, expected that of a node`,
      hint: belong,
    },
    {
      name: "a manager's certificate",
      spoil: () => trust.files("a", { own: withoutDnsName("owner", trust.ca, purpose.clientAuth) }),
      message: () =>
        `Cannot use node certificate "${files.cert}": its certificate is a manager's (client auth only), expected a node's (server auth only)`,
      hint: belong,
    },
    {
      name: "the key of another certificate",
      spoil: () => writeFileSync(files.key, readFileSync(trust.files("b").key)),
      message: () =>
        `Cannot use key of the node certificate "${files.key}": it is not the key of "${files.cert}"`,
      hint: belong,
    },
    {
      name: "a key of another type",
      spoil: () =>
        writeFileSync(
          files.key,
          revealKey(generateKeyPairSync("ec", { namedCurve: "prime256v1" }).privateKey),
        ),
      message: () => `Cannot use key of the node certificate "${files.key}": its key is ec, ${keyForm}`,
      hint: belong,
    },
    {
      name: "a key with a typing error, without a word of it",
      spoil: () => writeFileSync(files.key, readFileSync(files.key, "utf8").replace("MC4", "M#4")),
      message: () =>
        `Cannot use key of the node certificate "${files.key}": it cannot be decoded, ${keyForm}`,
      hint: belong,
    },
    {
      name: "an empty key",
      spoil: () => writeFileSync(files.key, ""),
      message: () =>
        `Cannot use key of the node certificate "${files.key}": it is no such PEM file, ${keyForm}`,
      hint: belong,
    },
    {
      name: "a certificate in place of the key",
      spoil: () => writeFileSync(files.key, readFileSync(files.cert)),
      message: () =>
        `Cannot use key of the node certificate "${files.key}": it is no such PEM file, ${keyForm}`,
      hint: belong,
    },
  ])("$name", async ({ spoil, message, hint }) => {
    spoil();
    expect(await failure(() => readCredentials(files))).toEqual({ message: message(), exit: 78, hint });
  });
});
