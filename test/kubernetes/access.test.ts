/** From a kubeconfig and its files to what a request is made with: rotation, checks before TLS would fail, exit 78. */
import { describe, expect, test } from "bun:test";
import { generateKeyPairSync } from "node:crypto";
import { chmod, mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ApiAccess } from "../../src/kubernetes/access.ts";
import { inCluster } from "../../src/kubernetes/names.ts";
import { revealKey } from "../../src/trust/credentials.ts";
import { makeClusterCa, type KeyedCertificate } from "../../src/trust/make-certificate.ts";
import { FakeClock } from "../fakes/clock.ts";
import { kubeCertificate } from "../fakes/kube-api.ts";
import { failure, withDirectory } from "../host/temporary.ts";
import { issued } from "../trust/cluster.ts";

const ca = makeClusterCa(issued);
const client = kubeCertificate("system:node:n1", ca);
const other = kubeCertificate("other", ca);
const expired = kubeCertificate("system:node:n1", ca, { notAfter: new Date("2026-01-31T00:00:00Z") });
const early = kubeCertificate("system:node:n1", ca, { notBefore: new Date("2026-03-01T00:00:01Z") });
const rsa = kubeCertificate("rsa", ca, { keys: generateKeyPairSync("rsa", { modulusLength: 2048 }) });
// Names beside, and nothing in the subject: it is legal.
const nameless = kubeCertificate("", ca, { dnsName: "n1.example" });
const never = new AbortController().signal;

const pemOf = ({ certificate }: KeyedCertificate): string => certificate.toString();
const keyOf = ({ key }: KeyedCertificate): string => revealKey(key);
const pairTls = (pair: KeyedCertificate) => ({ cert: pemOf(pair).trim(), key: keyOf(pair) });

/** Files beside a kubeconfig "config" that has this user and cluster. */
interface Scene {
  readonly user?: Readonly<Record<string, unknown>>;
  readonly cluster?: Readonly<Record<string, unknown>>;
  readonly files?: Readonly<Record<string, string>>;
  /** Instead of what user and cluster make. */
  readonly config?: string;
}

/** What an exec plugin answers. */
function answer(status: object): string {
  return JSON.stringify({ kind: "ExecCredential", apiVersion: "client.authentication.k8s.io/v1", status });
}

const at = new Date("2026-03-01T00:00:00Z");

async function withAccess<T>(
  { user = {}, cluster = {}, files = {}, config }: Scene,
  use: (access: ApiAccess, directory: string, clock: FakeClock) => Promise<T>,
): Promise<T> {
  return await withDirectory(async (directory) => {
    for (const [name, text] of Object.entries(files)) await writeFile(join(directory, name), text);
    const content = {
      "current-context": "c",
      contexts: [{ name: "c", context: { cluster: "k", user: "u" } }],
      clusters: [{ name: "k", cluster: { server: "https://192.0.2.1:6443", ...cluster } }],
      users: [{ name: "u", user }],
    };
    const path = join(directory, "config");
    await writeFile(path, config ?? Bun.YAML.stringify(content));
    const clock = new FakeClock(at);
    const environment = { PATH: process.env["PATH"] };
    return await use(new ApiAccess({ kubeconfig: path, environment, clock }), directory, clock);
  });
}

const pair = { "client-certificate": "c.pem", "client-key": "k.pem" };
const pairFiles = { "c.pem": pemOf(client), "k.pem": keyOf(client) };

describe("ApiAccess", () => {
  test.each<{ name: string; scene: Scene; want: Readonly<Record<string, unknown>> }>([
    {
      name: "nobody, known by the system's CAs",
      scene: {},
      want: { headers: {}, identity: "nobody (no credentials)", tls: {} },
    },
    {
      name: "a client certificate by files, and the CA",
      scene: {
        user: pair,
        cluster: { "certificate-authority": "ca.pem" },
        files: { ...pairFiles, "ca.pem": pemOf(ca) },
      },
      want: {
        headers: {},
        identity: 'client certificate "CN=system:node:n1"',
        tls: { ca: pemOf(ca).trim(), cert: pemOf(client).trim(), key: keyOf(client) },
      },
    },
    {
      name: "a client certificate without a subject, by the names in it",
      scene: { user: pair, files: { "c.pem": pemOf(nameless), "k.pem": keyOf(nameless) } },
      want: { headers: {}, identity: 'client certificate "DNS:n1.example"', tls: pairTls(nameless) },
    },
    {
      name: "certificate and key in one file, as kubelet keeps them, with the one above it",
      scene: {
        user: { "client-certificate": "both.pem", "client-key": "both.pem" },
        files: { "both.pem": `junk\n${pemOf(client)}${pemOf(ca)}${keyOf(client)}` },
      },
      want: { tls: { cert: `${pemOf(client).trim()}\n${pemOf(ca).trim()}`, key: keyOf(client) } },
    },
    {
      name: "an RSA key in its old form",
      scene: {
        user: pair,
        files: { "c.pem": pemOf(rsa), "k.pem": rsa.key.export({ type: "pkcs1", format: "pem" }) },
      },
      want: { tls: { cert: pemOf(rsa).trim(), key: keyOf(rsa) } },
    },
    {
      name: "an EC key in its old form, behind its parameters",
      scene: {
        user: pair,
        files: {
          "c.pem": pemOf(client),
          "k.pem": `-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n${client.key.export({ type: "sec1", format: "pem" })}`,
        },
      },
      want: { tls: { cert: pemOf(client).trim(), key: keyOf(client) } },
    },
    {
      name: "a token, and the name to check",
      scene: { user: { token: "abc" }, cluster: { "tls-server-name": "kube.example" } },
      want: { headers: { authorization: "Bearer abc" }, tls: { serverName: "kube.example" } },
    },
    {
      name: "a token file before a token, without the line end",
      scene: { user: { token: "abc", tokenFile: "t" }, files: { t: "from-file\n" } },
      want: { headers: { authorization: "Bearer from-file" }, secrets: ["from-file"] },
    },
    {
      name: "a user name",
      scene: { user: { username: "ä", password: "p:q" } },
      want: {
        headers: { authorization: "Basic w6Q6cDpx" },
        identity: 'user name "\\u{e4}"',
        secrets: ["p:q", "w6Q6cDpx"],
      },
    },
    {
      name: "a proxy, and a server that is not checked",
      scene: { cluster: { "proxy-url": "http://p:1", "insecure-skip-tls-verify": true } },
      want: { proxy: "http://p:1", tls: { rejectUnauthorized: false } },
    },
    {
      name: "everything at once, each secret of it named",
      scene: {
        user: { ...pair, token: "abc" },
        cluster: { "proxy-url": "http://u:p%2Fq@p:1" },
        files: pairFiles,
      },
      want: {
        secrets: ["abc", ...keyOf(client).trim().split("\n").slice(1, -1), "p%2Fq", "p/q"],
      },
    },
    {
      name: "no credentials where there is no TLS",
      scene: { user: { token: "abc" }, cluster: { server: "http://127.0.0.1:8001" } },
      want: { server: "http://127.0.0.1:8001", headers: {}, tls: undefined },
    },
  ])("connects as $name", async ({ scene, want }) => {
    await withAccess(scene, async (access) => {
      await access.check();
      const connection: Record<string, unknown> = { ...(await access.connect(never)) };
      expect(Object.fromEntries(Object.keys(want).map((name) => [name, connection[name]]))).toEqual(want);
    });
  });

  test.each<{ name: string; scene: Scene; want: RegExp; hint?: string }>([
    {
      name: "not YAML",
      scene: { config: "a: [" },
      want: /^Cannot use kubeconfig ".*\/config": it is not YAML/,
    },
    {
      name: "without its CA file",
      scene: { cluster: { "certificate-authority": "ca.pem" } },
      want: /^Cannot use certificate-authority ".*\/ca\.pem" of the kubeconfig ".*\/config": there is no such file$/,
    },
    {
      name: "with a CA file that holds none",
      scene: { cluster: { "certificate-authority": "k" }, files: { k: keyOf(client) } },
      want: /certificate-authority ".*\/k" of .*: it has no certificate, expected a PEM file with one$/,
    },
    {
      name: "with a CA that cannot be decoded",
      scene: {
        cluster: { "certificate-authority": "k" },
        files: { k: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n" },
      },
      want: /certificate-authority ".*\/k" of .*: a certificate in it cannot be decoded$/,
    },
    {
      name: "with a certificate that expired",
      scene: { user: pair, files: { "c.pem": pemOf(expired), "k.pem": keyOf(expired) } },
      want: /^Cannot use client-certificate ".*\/c\.pem" of .*: it expired on Jan 31 00:00:00 2026 GMT$/,
      hint: "Renew the certificate, or set the clock",
    },
    {
      name: "with the key of another certificate",
      scene: { user: pair, files: { "c.pem": pemOf(client), "k.pem": keyOf(other) } },
      want: /^Cannot use client-key ".*\/k\.pem" of .*: it is not the key of certificate "CN=system:node:n1"$/,
    },
    {
      name: "with the key of another certificate, which has no subject",
      scene: { user: pair, files: { "c.pem": pemOf(nameless), "k.pem": keyOf(other) } },
      want: /client-key ".*\/k\.pem" of .*: it is not the key of certificate "DNS:n1\.example"$/,
    },
    {
      name: "with a key that cannot be decoded",
      scene: {
        user: pair,
        files: {
          "c.pem": pemOf(client),
          "k.pem": "-----BEGIN PRIVATE KEY-----\nSECRET\n-----END PRIVATE KEY-----",
        },
      },
      want: /client-key ".*\/k\.pem" of .*: its private key cannot be decoded, expected one without a password$/,
    },
    {
      name: "with a certificate in the key's place",
      scene: { user: pair, files: { "c.pem": pemOf(client), "k.pem": pemOf(client) } },
      want: /client-key ".*\/k\.pem" of .*: it has no private key, expected a PEM file with one$/,
    },
    {
      name: "without its token file",
      scene: { user: { tokenFile: "t" } },
      want: /^Cannot read token ".*\/t" of the kubeconfig ".*\/config": there is no such file$/,
    },
    {
      name: "with an empty token file",
      scene: { user: { tokenFile: "t" }, files: { t: " \n" } },
      want: /token ".*\/t" of .*: it is empty, expected a token$/,
    },
    {
      name: "with a token file that is something else",
      scene: { user: { tokenFile: "t" }, files: { t: pemOf(client) } },
      want: /token ".*\/t" of .*: it is not printable ASCII without spaces, expected a token$/,
    },
    {
      name: "whose exec plugin is not installed",
      scene: {
        user: {
          exec: {
            apiVersion: "client.authentication.k8s.io/v1",
            command: "nx-plugin",
            installHint: "get it",
          },
        },
      },
      want: /^Cannot run exec plugin "nx-plugin" of the kubeconfig: no such program$/,
      hint: "get it",
    },
  ])("check() refuses a kubeconfig $name with exit 78", async ({ scene, want, hint }) => {
    const refused = await failure(() => withAccess(scene, (access) => access.check()));
    expect(refused.message).toMatch(want);
    expect(refused.exit).toBe(78);
    expect(refused.message).not.toContain("SECRET");
    if (hint !== undefined) expect(refused.hint).toBe(hint);
  });

  test.each([
    { name: "is not there", make: async () => {}, want: "there is no such file" },
    {
      name: "is a directory",
      make: (path: string) => mkdir(path),
      want: "it is a directory, expected a regular file",
    },
    {
      name: "is too long to be one",
      make: (path: string) => writeFile(path, "#".repeat(5_000_000)),
      want: "it has 5000000 bytes, expected at most 4194304",
    },
  ])("check() refuses a kubeconfig that $name", async ({ make, want }) => {
    await withDirectory(async (directory) => {
      const kubeconfig = join(directory, "config");
      await make(kubeconfig);
      const access = new ApiAccess({ kubeconfig, environment: {}, clock: new FakeClock() });
      expect(await failure(() => access.check())).toEqual({
        message: `Cannot use kubeconfig "${kubeconfig}": ${want}`,
        exit: 78,
        hint: "--kubeconfig says where it is",
      });
    });
  });

  test.each([
    {
      name: "of TLS without a check",
      cluster: { "insecure-skip-tls-verify": true },
      want: [/^insecure-skip-tls-verify in/],
    },
    {
      name: "of no TLS",
      cluster: { server: "http://127.0.0.1:8001" },
      want: [/^No TLS to the Kubernetes API http:/],
    },
    { name: "of nothing else", cluster: {}, want: [] },
  ])("check() warns $name", async ({ cluster, want }) => {
    await withAccess({ cluster, user: { token: "t" } }, async (access) => {
      const warnings = await access.check();
      expect(warnings).toHaveLength(want.length);
      for (const [index, pattern] of want.entries()) expect(warnings[index]).toMatch(pattern);
    });
  });

  test("waits for the time of a certificate that is not valid yet, and does not end the start for it", async () => {
    const scene = { user: pair, files: { "c.pem": pemOf(early), "k.pem": keyOf(early) } };
    await withAccess(scene, async (access, directory, clock) => {
      const said = `Cannot use client-certificate "${directory}/c.pem" of the kubeconfig "${directory}/config": it is not valid before Mar  1 00:00:01 2026 GMT`;
      expect(await access.check()).toEqual([said]);
      expect(await failure(() => access.connect(never))).toEqual({
        message: said,
        exit: 78,
        hint: "Set the clock, or wait until then",
      });
      await clock.advance(1_000);
      expect(await access.check()).toEqual([]);
      expect((await access.connect(never)).tls?.cert).toBe(pemOf(early).trim());
    });
  });

  test("reads everything again for each connection: token, certificate, kubeconfig", async () => {
    const scene = { user: { ...pair, tokenFile: "t" }, files: { ...pairFiles, t: "one" } };
    await withAccess(scene, async (access, directory) => {
      const connected = async (): Promise<unknown> => {
        const { headers, tls, server } = await access.connect(never);
        return [headers["authorization"], tls?.cert === pemOf(client).trim(), server];
      };
      expect(await connected()).toEqual(["Bearer one", true, "https://192.0.2.1:6443"]);
      await writeFile(join(directory, "t"), "two");
      await writeFile(join(directory, "c.pem"), pemOf(other));
      await writeFile(join(directory, "k.pem"), keyOf(other));
      expect(await connected()).toEqual(["Bearer two", false, "https://192.0.2.1:6443"]);
      const config = await readFile(join(directory, "config"), "utf8");
      await writeFile(join(directory, "config"), config.replace("192.0.2.1", "192.0.2.2"));
      expect(await connected()).toEqual(["Bearer two", false, "https://192.0.2.2:6443"]);
      await writeFile(join(directory, "config"), "a: [");
      expect((await failure(connected)).message).toContain("it is not YAML");
      await writeFile(join(directory, "config"), config);
      expect(await connected()).toEqual(["Bearer two", false, "https://192.0.2.1:6443"]);
    });
  });

  test("asks an exec plugin once, until its answer expires, is refused, or another plugin is meant", async () => {
    const command = "./plugin";
    const user = {
      exec: { apiVersion: "client.authentication.k8s.io/v1", command, provideClusterInfo: true },
    };
    const script = `#!/bin/sh
n=$(($(cat "$0.count" 2>/dev/null || echo 0) + 1)); echo $n >"$0.count"
case "$KUBERNETES_EXEC_INFO" in *'"server":"https://192.0.2.1:6443","certificate-authority-data":'*) ;; *) exit 1 ;; esac
echo '{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","status":{"token":"'token-$n'",
  "expirationTimestamp":"2026-03-01T01:00:00Z"}}'
`;
    const scene = {
      user,
      cluster: { "certificate-authority": "ca.pem" },
      files: { plugin: script, "ca.pem": pemOf(ca) },
    };
    await withAccess(scene, async (access, directory, clock) => {
      await chmod(join(directory, "plugin"), 0o755);
      await access.check();
      const token = async (): Promise<unknown> => (await access.connect(never)).headers["authorization"];
      expect([await token(), await token()]).toEqual(["Bearer token-1", "Bearer token-1"]);
      access.refused();
      expect([await token(), await token()]).toEqual(["Bearer token-2", "Bearer token-2"]);
      await clock.advance(3_599_000);
      expect(await token()).toBe("Bearer token-2");
      await clock.advance(1_000);
      // What it gives now has expired as well, so it is asked each time.
      expect([await token(), await token()]).toEqual(["Bearer token-3", "Bearer token-4"]);
    });
  });

  test("takes client certificates of an exec plugin, and checks them", async () => {
    const status = { clientCertificateData: pemOf(client), clientKeyData: keyOf(client) };
    const user = {
      exec: { apiVersion: "client.authentication.k8s.io/v1", command: "cat", args: ["ANSWER"] },
    };
    await withAccess({ user }, async (access, directory) => {
      const config = join(directory, "config");
      const path = join(directory, "answer");
      await writeFile(config, (await readFile(config, "utf8")).replace("ANSWER", path));
      await writeFile(path, answer(status));
      const { tls, identity } = await access.connect(never);
      expect([tls, identity]).toEqual([
        { cert: pemOf(client).trim(), key: keyOf(client) },
        'client certificate "CN=system:node:n1"',
      ]);
      access.refused();
      await writeFile(path, answer({ ...status, clientKeyData: keyOf(other) }));
      expect((await failure(() => access.connect(never))).message).toBe(
        'Cannot use clientKeyData of the exec plugin "cat": it is not the key of certificate "CN=system:node:n1"',
      );
    });
  });

  test("in-cluster takes the service account of the pod, as it rotates", async () => {
    await withDirectory(async (directory) => {
      await writeFile(join(directory, "ca.crt"), pemOf(ca));
      await writeFile(join(directory, "token"), "one\n");
      const environment = { KUBERNETES_SERVICE_HOST: "fd00::1", KUBERNETES_SERVICE_PORT: "443" };
      const options = { kubeconfig: inCluster, clock: new FakeClock(), serviceAccountDirectory: directory };
      const access = new ApiAccess({ ...options, environment });
      expect(await access.check()).toEqual([]);
      const { server, headers, tls } = await access.connect(never);
      expect([server, headers, tls]).toEqual([
        "https://[fd00::1]",
        { authorization: "Bearer one" },
        { ca: pemOf(ca).trim() },
      ]);
      await writeFile(join(directory, "token"), "two\n");
      expect((await access.connect(never)).headers).toEqual({ authorization: "Bearer two" });
      const outside = await failure(() => new ApiAccess({ ...options, environment: {} }).check());
      expect(outside.exit).toBe(78);
      expect(outside.message).toBe(
        "Cannot use the service account of this pod (--kubeconfig in-cluster): KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set to an address and a port",
      );
    });
  });
});
