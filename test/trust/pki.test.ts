/** `clusternet pki`: certificates in the form of a real cluster's, and files that are never overwritten. */
import { describe, expect, test } from "bun:test";
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { pkiInit, pkiIssue } from "../../src/commands/pki.ts";
import type { NodeId } from "../../src/core/node.ts";
import { silentLogger } from "../../src/log.ts";
import { parseCertificate, purpose } from "../../src/trust/certificate.ts";
import { readCredentials } from "../../src/trust/credentials.ts";
import { makeClusterCa, makeNodeCertificate } from "../../src/trust/make-certificate.ts";
import { failure, octal, onDisk, withDirectory } from "../host/temporary.ts";
import { maskText, renderCertificate } from "./certificate-text.ts";
import { issued, withoutDnsName } from "./cluster.ts";

const fixture = (name: string): string =>
  readFileSync(join(import.meta.dir, `../fixtures/credentials/${name}.txt`), "utf8");

function context() {
  let printed = "";
  const warnings: string[] = [];
  return {
    log: { ...silentLogger, warn: (message: string) => void warnings.push(message) },
    stdout: (text: string) => void (printed += text),
    printed: () => printed,
    warnings,
  };
}

const node = "node-1" as NodeId;

/** Names, modes and texts of a directory's files. */
function filesIn(directory: string): Record<string, string> {
  return Object.fromEntries(
    readdirSync(directory)
      .toSorted()
      .map((name) => {
        const path = join(directory, name);
        return [`${name} ${octal(statSync(path).mode)}`, readFileSync(path, "utf8")];
      }),
  );
}

describe("certificates have the form of a Metropolis cluster's", () => {
  const ca = makeClusterCa(issued);
  test.each([
    { name: "ca", certificate: ca.certificate },
    { name: "node", certificate: makeNodeCertificate("node-1", ca, issued).certificate },
    { name: "manager", certificate: withoutDnsName("owner", ca, purpose.clientAuth).certificate },
  ])("$name", ({ name, certificate }) => {
    expect(maskText(renderCertificate(certificate))).toBe(maskText(fixture(name)));
  });

  test("what is masked still says who signed whom", () => {
    const text = renderCertificate(makeNodeCertificate("node-1", ca, issued).certificate);
    const identifier = /Subject Key Identifier: \n(.*)/.exec(renderCertificate(ca.certificate))?.[1];
    expect(text).toContain(`Authority Key Identifier: \n${identifier}`);
    expect(text).toContain("Issuer: CN = clusternet cluster CA\n");
    expect(text).toContain("Subject: CN = node-1\n");
    expect(text).toContain("\nDNS:node-1\n");
    expect(text).toContain("Not Before: Jan  1 00:00:00 2026 GMT\nNot After : Dec 31 23:59:59 9999 GMT\n");
  });

  test("serial numbers are 128 bits, positive, and no two are equal", () => {
    const serials = Array.from(
      { length: 50 },
      () => makeNodeCertificate("a", ca, issued).certificate.serialNumber,
    );
    expect(new Set(serials).size).toBe(50);
    expect(
      serials.filter((serial) => !/^[0-7][0-9A-F]{31}$/.test(serial) || serial.startsWith("00")),
    ).toEqual([]);
    // Any bit but the first can be either.
    expect(new Set(serials.map((serial) => Number.parseInt(serial.slice(0, 2), 16) % 2)).size).toBe(2);
  });
});

test("pki init and pki issue make what a node needs, readable by those who may", async () => {
  await withDirectory(async (directory) => {
    const caDir = join(directory, "made/ca");
    const out = join(directory, "made/node-1");
    const { printed, warnings, ...rest } = context();
    expect([await pkiInit({ caDir }, rest), await pkiIssue({ caDir, out }, node, rest)]).toEqual([0, 0]);
    expect(Object.keys({ ...filesIn(caDir), ...filesIn(out) }).toSorted()).toEqual([
      "ca-key.pem 600",
      "ca.pem 644",
      "cert-key.pem 600",
      "cert.pem 644",
    ]);
    expect([octal(statSync(caDir).mode), octal(statSync(out).mode)]).toEqual(["700", "700"]);
    const files = { ca: join(out, "ca.pem"), cert: join(out, "cert.pem"), key: join(out, "cert-key.pem") };
    const own = await readCredentials(files);
    expect([
      own.nodeId,
      own.ca.raw.equals(parseCertificate(readFileSync(join(caDir, "ca.pem"), "utf8")).raw),
    ]).toEqual([node, true]);
    expect(Math.abs(Date.parse(own.certificate.validFrom) - Date.now())).toBeLessThan(60_000);
    expect(warnings).toEqual([]);
    for (const text of Object.values({ ...filesIn(caDir), ...filesIn(out) })) {
      expect(text).toMatch(/^-----BEGIN [A-Z ]+-----\n(?:[A-Za-z0-9+/=]+\n)+-----END [A-Z ]+-----\n$/);
      for (const line of text.split("\n").slice(1, -2)) expect(printed()).not.toContain(line);
    }
  });
});

const nothingOverwritten = "Nothing is overwritten: choose another directory, or move away what is there";
const keyAlone =
  "If an earlier `pki init` was interrupted, remove ca-key.pem and run it again; if nodes were made with that key, put " +
  "a copy of ca.pem back, which each of them has";

describe("nothing is overwritten, and nothing is made beside it", () => {
  test.each<{ names: readonly string[]; found: string; hint: string }>([
    { names: ["ca-key.pem", "ca.pem"], found: 'ca-key.pem" is there already', hint: nothingOverwritten },
    {
      names: ["ca-key.pem"],
      found: 'ca-key.pem" is there already, without ca.pem',
      hint: keyAlone,
    },
    {
      names: ["ca.pem"],
      found: 'ca.pem" is there already, without ca-key.pem',
      hint: "The key of a CA stays where `pki init` made it: go there, or put ca-key.pem back",
    },
  ])("pki init where $names is", async ({ names, found, hint }) => {
    await withDirectory(async (caDir) => {
      for (const name of names) writeFileSync(join(caDir, name), "mine");
      expect(await failure(() => pkiInit({ caDir }, context()))).toEqual({
        message: `Cannot make cluster CA in "${caDir}": "${caDir}/${found}`,
        exit: 78,
        hint,
      });
      expect(Object.values(filesIn(caDir))).toEqual(names.map(() => "mine"));
    });
  });

  test.each<{ names: readonly string[]; found: string; hint: string }>([
    {
      names: ["cert-key.pem"],
      found: 'cert-key.pem" is there already, without cert.pem and ca.pem',
      hint: "If an earlier `pki issue` was interrupted, remove cert-key.pem and run it again: nobody knows that key yet",
    },
    {
      names: ["cert-key.pem", "cert.pem"],
      found: 'cert-key.pem" is there already, without ca.pem',
      hint: "If an earlier `pki issue` was interrupted, remove cert-key.pem and cert.pem and run it again: nobody knows that key yet",
    },
    {
      names: ["cert-key.pem", "cert.pem", "ca.pem"],
      found: 'cert-key.pem" is there already',
      hint: nothingOverwritten,
    },
  ])("pki issue where $names is", async ({ names, found, hint }) => {
    await withDirectory(async (directory) => {
      const [caDir, out] = [join(directory, "ca"), join(directory, "out")];
      await pkiInit({ caDir }, context());
      mkdirSync(out);
      for (const name of names) writeFileSync(join(out, name), "mine");
      expect(await failure(() => pkiIssue({ caDir, out }, node, context()))).toEqual({
        message: `Cannot make credentials in "${out}": "${out}/${found}`,
        exit: 78,
        hint,
      });
      expect(Object.values(filesIn(out))).toEqual(names.map(() => "mine"));
    });
  });

  test.each(["ca.pem", "cert.pem", "cert-key.pem"])(
    "pki issue where %s is, also as a link to nowhere",
    async (name) => {
      await withDirectory(async (directory) => {
        const caDir = join(directory, "ca");
        await pkiInit({ caDir }, context());
        const out = join(directory, "out");
        await pkiIssue({ caDir, out }, node, context());
        const before = filesIn(out);
        expect((await failure(() => pkiIssue({ caDir, out }, node, context()))).exit).toBe(78);
        expect(filesIn(out)).toEqual(before);

        const empty = join(directory, "empty");
        mkdirSync(empty);
        symlinkSync("/nowhere/at/all", join(empty, name));
        expect((await failure(() => pkiIssue({ caDir, out: empty }, node, context()))).message).toStartWith(
          `Cannot make credentials in "${empty}": "${join(empty, name)}" is there already`,
        );
        expect(readdirSync(empty)).toEqual([name]);
      });
    },
  );
});

test.each<{
  name: string;
  spoil: (caDir: string, other: string) => void;
  message: (caDir: string) => string;
  hint?: (caDir: string) => string;
}>([
  {
    name: "a directory without a CA",
    spoil: (caDir) => rmSync(caDir, { recursive: true }),
    message: (caDir) => `Cannot read cluster CA "${caDir}/ca.pem": there is no such file`,
    hint: (caDir) => `clusternet pki init --ca-dir ${caDir} makes a cluster CA`,
  },
  {
    name: "a key without its CA, as an interrupted pki init leaves it",
    spoil: (caDir) => rmSync(join(caDir, "ca.pem")),
    message: (caDir) => `Cannot read cluster CA "${caDir}/ca.pem": there is no such file`,
    hint: () => keyAlone,
  },
  {
    name: "a CA without its key",
    spoil: (caDir) => rmSync(join(caDir, "ca-key.pem")),
    message: (caDir) => `Cannot read key of the cluster CA "${caDir}/ca-key.pem": there is no such file`,
    hint: () => "The key of a CA stays where `pki init` made it: go there, or put ca-key.pem back",
  },
  {
    name: "the key of another CA",
    spoil: (caDir, other) => copyFileSync(join(other, "ca-key.pem"), join(caDir, "ca-key.pem")),
    message: (caDir) => `Cannot use key "${caDir}/ca-key.pem": it is not the key of "${caDir}/ca.pem"`,
  },
  {
    name: "a node's certificate as CA",
    spoil: (caDir, other) => copyFileSync(join(other, "node/cert.pem"), join(caDir, "ca.pem")),
    message: (caDir) =>
      `Cannot use cluster CA "${caDir}/ca.pem": it is the certificate of "CN=node-1", which is no CA`,
  },
])("pki issue refuses $name, and makes nothing", async ({ spoil, message, hint }) => {
  await withDirectory(async (directory) => {
    const [caDir, other] = [join(directory, "ca"), join(directory, "other")];
    await pkiInit({ caDir }, context());
    await pkiInit({ caDir: other }, context());
    await pkiIssue({ caDir: other, out: join(other, "node") }, node, context());
    spoil(caDir, other);
    const out = join(directory, "out");
    expect(await failure(() => pkiIssue({ caDir, out }, node, context()))).toMatchObject({
      message: message(caDir),
      exit: 78,
      ...(hint !== undefined && { hint: hint(caDir) }),
    });
    expect(existsSync(out)).toBe(false);
  });
});

test("pki issue makes nothing in a directory of a CA, and does not advise to remove anything there", async () => {
  await withDirectory(async (directory) => {
    const caDir = join(directory, "ca");
    await pkiInit({ caDir }, context());
    const before = filesIn(caDir);
    const refused = await failure(() => pkiIssue({ caDir, out: caDir }, node, context()));
    expect([refused.message, refused.hint]).toEqual([
      `Cannot make credentials in "${caDir}": it is the directory of a cluster CA, it has ca-key.pem`,
      "Choose another directory with --out: that key belongs to no node",
    ]);
    expect(filesIn(caDir)).toEqual(before);
  });
});

test("pki issue warns of a CA key that others may read", async () => {
  await withDirectory(async (caDir) => {
    const { warnings, ...rest } = context();
    await pkiInit({ caDir }, rest);
    chmodSync(join(caDir, "ca-key.pem"), 0o640);
    await pkiIssue({ caDir, out: join(caDir, "out") }, node, rest);
    expect(warnings).toEqual(["Others may read the key of the cluster CA, and make nodes with it"]);
  });
});

test("key files have mode 0600 from the first byte, and a full disk leaves no file at all", async () => {
  const code = `
    import { readdirSync } from "node:fs";
    import { pkiInit } from "SRC/commands/pki.ts";
    import { silentLogger } from "SRC/log.ts";
    process.umask(0);
    let message = "";
    try { await pkiInit({ caDir: process.cwd() }, { log: silentLogger, stdout() {} }); }
    catch (error) { message = error.message; }
    export default { message, left: readdirSync(".").filter((name) => name !== "filler") };
  `;
  const prepare = "head -c 1000000 /dev/zero > filler 2>/dev/null || true";
  const found = (await onDisk({ mount: "size=16k,mode=700", prepare, code })) as {
    message: string;
    left: string[];
  };
  expect(found.message).toContain("ENOSPC");
  expect(found.left).toEqual([]);
});
