/** A kubeconfig in every form that kubectl reads, and everything that cannot be used: what each says. */
import { describe, expect, test } from "bun:test";
import { type KubeAccess, type KubeUser, parseKubeconfig } from "../../src/kubernetes/kubeconfig.ts";
import { failure } from "../host/temporary.ts";

const path = "/etc/kube/config";

/** A kubeconfig whose one context has this cluster and this user. */
function config(cluster: string, user = "{}"): string {
  return `apiVersion: v1
kind: Config
current-context: c
preferences: {}
contexts: [{name: c, context: {cluster: k, user: u, namespace: x}}]
clusters: [{name: k, cluster: ${cluster}}]
users: [{name: u, user: ${user}}]
`;
}

const server = "server: https://192.0.2.1:6443";

describe("parseKubeconfig()", () => {
  test("reads the form that kubeadm writes: blocks, data in base64, a YAML marker, Windows line ends", () => {
    const content = `---
apiVersion: v1
clusters:
- cluster:
    certificate-authority-data: ${btoa("CA")}
    server: https://control.example:6443
  name: kubernetes
contexts:
- context:
    cluster: kubernetes
    user: system:node:n1
  name: system:node:n1@kubernetes
current-context: system:node:n1@kubernetes
kind: Config
preferences: {}
users:
- name: system:node:n1
  user:
    client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem
    client-key: /var/lib/kubelet/pki/kubelet-client-current.pem
`;
    const want: KubeAccess = {
      origin: 'kubeconfig "/etc/kube/config"',
      server: "https://control.example:6443",
      ca: { kind: "data", field: "certificate-authority-data", text: "CA" },
      insecure: false,
      user: {
        certificate: {
          kind: "file",
          field: "client-certificate",
          path: "/var/lib/kubelet/pki/kubelet-client-current.pem",
        },
        key: { kind: "file", field: "client-key", path: "/var/lib/kubelet/pki/kubelet-client-current.pem" },
      },
    };
    expect(parseKubeconfig(content, path)).toEqual(want);
    expect(parseKubeconfig(content.replaceAll("\n", "\r\n"), path)).toEqual(want);
    expect(parseKubeconfig(`\uFEFF${content}`, path)).toEqual(want);
  });

  test.each<{ name: string; cluster: string; want: Partial<KubeAccess> }>([
    {
      name: "a path behind the host, without its last slash",
      cluster: "{server: https://rancher.example/k8s/clusters/c-1/}",
      want: { server: "https://rancher.example/k8s/clusters/c-1" },
    },
    {
      name: "an IPv6 address",
      cluster: "{server: 'https://[2001:DB8::1]:6443'}",
      want: { server: "https://[2001:db8::1]:6443" },
    },
    { name: "no TLS", cluster: "{server: http://127.0.0.1:8001}", want: { server: "http://127.0.0.1:8001" } },
    {
      name: "a CA file beside it",
      cluster: `{${server}, certificate-authority: ca.pem}`,
      want: { ca: { kind: "file", field: "certificate-authority", path: "/etc/kube/ca.pem" } },
    },
    {
      name: "a CA file above it",
      cluster: `{${server}, certificate-authority: ../pki/ca.pem}`,
      want: { ca: { kind: "file", field: "certificate-authority", path: "/etc/pki/ca.pem" } },
    },
    {
      name: "CA data before the CA file",
      cluster: `{${server}, certificate-authority: ca.pem, certificate-authority-data: ${btoa("CA")}}`,
      want: { ca: { kind: "data", field: "certificate-authority-data", text: "CA" } },
    },
    {
      name: "CA data in several lines",
      cluster: `{${server}, certificate-authority-data: "${btoa("CAC")}\\n${btoa("A")}"}`,
      want: { ca: { kind: "data", field: "certificate-authority-data", text: "CACA" } },
    },
    {
      name: "another name for the server's certificate",
      cluster: `{${server}, tls-server-name: kube.example}`,
      want: { serverName: "kube.example" },
    },
    {
      name: "a server that is not checked",
      cluster: `{${server}, insecure-skip-tls-verify: true}`,
      want: { insecure: true },
    },
    {
      name: "a proxy",
      cluster: `{${server}, proxy-url: "http://u:p@p:1"}`,
      want: { proxyUrl: "http://u:p@p:1" },
    },
    {
      name: "empty texts and nulls as nothing",
      cluster: `{${server}, certificate-authority: "", tls-server-name: ~, proxy-url: "", insecure-skip-tls-verify: null}`,
      want: {},
    },
    {
      name: "fields that it does not know",
      cluster: `{${server}, disable-compression: true, x: [1]}`,
      want: {},
    },
    ...["y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "True", "TRUE"].map((word) => ({
      name: `${word} as true`,
      cluster: `{${server}, insecure-skip-tls-verify: ${word}}`,
      want: { insecure: true },
    })),
    ...["n", "N", "no", "No", "NO", "off", "Off", "OFF", "False", "FALSE"].map((word) => ({
      name: `${word} as false`,
      cluster: `{${server}, insecure-skip-tls-verify: ${word}}`,
      want: {},
    })),
  ])("reads of a cluster $name", ({ cluster, want }) => {
    const { ca, server, serverName, insecure, proxyUrl } = parseKubeconfig(config(cluster), path);
    expect({ ca, server, serverName, insecure, proxyUrl }).toEqual({
      ca: undefined,
      server: "https://192.0.2.1:6443",
      serverName: undefined,
      insecure: false,
      proxyUrl: undefined,
      ...want,
    });
  });

  test.each<{ name: string; user: string; cluster?: string; want: KubeUser }>([
    { name: "nothing", user: "{}", want: {} },
    { name: "null", user: "~", want: {} },
    { name: "a token", user: "{token: abc.def-1}", want: { token: "abc.def-1" } },
    { name: "a token that looks like a number, in quotes", user: '{token: "0123"}', want: { token: "0123" } },
    {
      name: "a token file beside it, and a token",
      user: "{tokenFile: token, token: t}",
      want: { tokenFile: "/etc/kube/token", token: "t" },
    },
    {
      name: "certificate and key as data, before the files",
      user: `{client-certificate-data: ${btoa("C")}, client-key-data: ${btoa("K")}, client-certificate: c, client-key: k}`,
      want: {
        certificate: { kind: "data", field: "client-certificate-data", text: "C" },
        key: { kind: "data", field: "client-key-data", text: "K" },
      },
    },
    {
      name: "certificate and key as files",
      user: "{client-certificate: c.pem, client-key: ./k.pem}",
      want: {
        certificate: { kind: "file", field: "client-certificate", path: "/etc/kube/c.pem" },
        key: { kind: "file", field: "client-key", path: "/etc/kube/k.pem" },
      },
    },
    {
      name: "a user name",
      user: "{username: a, password: 'b c'}",
      want: { basic: { username: "a", password: "b c" } },
    },
    {
      name: "an exec plugin with everything",
      user: `{exec: {apiVersion: client.authentication.k8s.io/v1beta1, command: aws, args: [eks, get-token, --x=y, "1"],
        env: [{name: AWS_PROFILE, value: p}], installHint: get it, provideClusterInfo: true, interactiveMode: IfAvailable}}`,
      cluster: `{${server}, extensions: [{name: other, extension: 1}, {name: client.authentication.k8s.io/exec, extension: {a: 1}}]}`,
      want: {
        exec: {
          apiVersion: "client.authentication.k8s.io/v1beta1",
          command: "aws",
          args: ["eks", "get-token", "--x=y", "1"],
          env: { AWS_PROFILE: "p" },
          installHint: "get it",
          clusterInfo: { config: { a: 1 } },
        },
      },
    },
    {
      name: "an exec plugin beside it, with null where kubectl writes it",
      user: "{exec: {apiVersion: client.authentication.k8s.io/v1, command: ./bin/get, args: null, env: null, provideClusterInfo: false}}",
      want: {
        exec: {
          apiVersion: "client.authentication.k8s.io/v1",
          command: "/etc/kube/bin/get",
          args: [],
          env: {},
        },
      },
    },
  ])("reads of a user $name", ({ user, cluster = `{${server}}`, want }) => {
    expect(parseKubeconfig(config(cluster, user), path).user).toEqual(want);
  });

  test("follows YAML anchors, block texts and the current context among several", () => {
    const content = `
current-context: b
contexts:
  - {name: a, context: {cluster: one, user: nobody}}
  - name: b
    context: {cluster: two, user: ci}
clusters:
  - {name: one, cluster: &one {server: https://one.example, tls-server-name: kube}}
  - name: two
    cluster:
      <<: *one
      server: >-
        https://two.example
users:
  - name: ci
    user:
      token: |-
        abc
`;
    expect(parseKubeconfig(content, path)).toEqual({
      origin: 'kubeconfig "/etc/kube/config"',
      server: "https://two.example",
      serverName: "kube",
      insecure: false,
      user: { token: "abc" },
    });
  });

  const secret = "SECRET1234";
  test.each<{ name: string; content: string; want: string; hint?: RegExp }>([
    { name: "nothing", content: "", want: "it holds nothing, expected one YAML object with" },
    { name: "a comment", content: "# x\n", want: "it holds nothing, expected one YAML object with" },
    { name: "one text", content: secret, want: "it holds a text, expected one YAML object" },
    { name: "a list", content: `- ${secret}\n`, want: "it holds a list or several documents, expected" },
    {
      name: "two documents",
      content: "---\na: 1\n---\nb: 2\n",
      want: "it holds a list or several documents",
    },
    {
      name: "bytes",
      content: "\u0000\u0001",
      want: "it is not YAML (Unexpected character)",
      hint: /kubectl/,
    },
    {
      name: "tabs",
      content: "a:\n\tb: 1\n",
      want: "it is not YAML (Tab characters cannot be used as indentation)",
    },
    {
      name: "a list that does not end",
      content: `a: [${secret}\n`,
      want: "it is not YAML (Unexpected token)",
    },
    { name: "brackets without end", content: "[".repeat(50_000), want: "it is not YAML (too deep)" },
    { name: "HTML", content: "<html><body>login</body></html>", want: "it holds a text" },
    {
      name: "an empty object",
      content: "{}",
      want: "current-context is missing or empty, expected the name of",
    },
    {
      name: "no current context",
      content: config(`{${server}}`).replace("current-context: c", ""),
      want: 'current-context is missing or empty, expected one of "c"',
      hint: /kubectl config use-context/,
    },
    {
      name: "a context that is not there",
      content: config(`{${server}}`).replace("current-context: c", "current-context: d"),
      want: 'context "d", which current-context names, is missing; it has "c"',
      hint: /kubectl config use-context/,
    },
    {
      name: "a cluster that is not there",
      content: config(`{${server}}`).replace("cluster: k,", "cluster: z,"),
      want: 'cluster "z", which context "c" names, is missing',
    },
    {
      name: "a user that is not there",
      content: config(`{${server}}`).replace("user: u,", "user: z,"),
      want: 'user "z", which context "c" names, is missing',
    },
    { name: "no server", content: config("{}"), want: 'server of cluster "k" is missing, expected a URL' },
    {
      name: "a server that is no URL",
      content: config("{server: '192.0.2.1:6443'}"),
      want: 'server of cluster "k" is "192.0.2.1:6443", expected a URL like https://192.0.2.1:6443',
    },
    ...[`u:${secret}@`, `:${secret}@`].map((credentials) => ({
      name: "a server with a password in it",
      content: config(`{server: "https://${credentials}k.example"}`),
      want: 'server of cluster "k" has a user name or a password in it, expected a URL',
      hint: /^Credentials belong to the user/,
    })),
    {
      name: "a server of another kind",
      content: config("{server: 'ftp://x'}"),
      want: 'server of cluster "k" is "ftp://x", expected a URL',
    },
    {
      name: "a CA that is not base64",
      content: config(`{${server}, certificate-authority-data: "${secret}!"}`),
      want: 'certificate-authority-data of cluster "k" is not base64',
    },
    {
      name: "a CA for a server that is not checked",
      content: config(`{${server}, certificate-authority: x, insecure-skip-tls-verify: true}`),
      want: 'cluster "k" has both insecure-skip-tls-verify and a certificate-authority, expected one of them',
    },
    {
      name: "a proxy that is none",
      content: config(`{${server}, proxy-url: "socks5://u:${secret}@p"}`),
      want: 'proxy-url of cluster "k" cannot be used, expected http://HOST:PORT or https://HOST:PORT',
    },
    {
      name: "a token that is a number",
      content: config(`{${server}}`, "{token: 123456}"),
      want: "users.0.user.token is a number, expected a text",
      hint: /quotes/,
    },
    {
      name: "a token with a line end",
      content: config(`{${server}}`, `{token: "${secret}\\nx: y"}`),
      want: 'token of user "u" is not printable ASCII without spaces',
    },
    {
      name: "a key that is not base64",
      content: config(`{${server}}`, `{client-certificate: c, client-key-data: "-----${secret}"}`),
      want: 'client-key-data of user "u" is not base64',
    },
    {
      name: "a certificate without key",
      content: config(`{${server}}`, "{client-certificate: c}"),
      want: 'user "u" has a client-certificate and no client-key, expected both',
    },
    {
      name: "a key without certificate",
      content: config(`{${server}}`, "{client-key: c}"),
      want: 'user "u" has a client-key and no client-certificate, expected both',
    },
    {
      name: "a way of logging in that kubectl has given up",
      content: config(`{${server}}`, `{auth-provider: {name: gcp, config: {access-token: ${secret}}}}`),
      want: 'user "u" has an auth-provider, which kubectl has given up since 1.26',
      hint: /exec plugin/,
    },
    {
      name: "somebody who acts as another",
      content: config(`{${server}}`, "{token: t, as: admin}"),
      want: 'user "u" acts as another user (as), which is not supported',
    },
    {
      name: "an exec plugin of an old version",
      content: config(
        `{${server}}`,
        "{exec: {apiVersion: client.authentication.k8s.io/v1alpha1, command: x}}",
      ),
      want: 'exec.apiVersion of user "u" is "client.authentication.k8s.io/v1alpha1", expected client',
    },
    {
      name: "an exec plugin without command",
      content: config(`{${server}}`, "{exec: {apiVersion: client.authentication.k8s.io/v1}}"),
      want: 'exec.command of user "u" is missing, expected the name of a program',
    },
    {
      name: "an exec plugin that must ask somebody",
      content: config(
        `{${server}}`,
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: x, interactiveMode: Always}}",
      ),
      want: 'exec.interactiveMode of user "u" is Always, but nobody sits at an agent\'s terminal',
    },
    {
      name: "an exec plugin's settings that hold themselves",
      content: config(
        `{${server}, extensions: [{name: client.authentication.k8s.io/exec, extension: &a [*a]}]}`,
        "{exec: {apiVersion: client.authentication.k8s.io/v1, command: x}}",
      ),
      want: 'extension "client.authentication.k8s.io/exec" of its cluster holds itself',
    },
    {
      name: "a list where an object belongs",
      content: config(`{${server}}`, `[{token: ${secret}}]`),
      want: "users.0.user is a list, expected an object",
    },
    {
      name: "an object where a list belongs",
      content: "current-context: c\nclusters: {k: {server: x}}\n",
      want: "clusters is an object, expected a list",
    },
    {
      name: "a word where true belongs",
      content: config(`{${server}, insecure-skip-tls-verify: maybe}`),
      want: "clusters.0.cluster.insecure-skip-tls-verify is a text, expected true or false",
    },
    {
      name: "something without a name",
      content: "current-context: c\nclusters: [{cluster: {server: x}}]\n",
      want: "clusters.0.name is missing",
    },
  ])("refuses $name with exit 78 and no secret", async ({ content, want, hint }) => {
    const { message, exit, hint: said } = await failure(() => parseKubeconfig(content, path));
    expect(message).toStartWith(`Cannot use kubeconfig "${path}": ${want}`);
    expect(exit).toBe(78);
    if (hint !== undefined) expect(String(said)).toMatch(hint);
    expect(`${message} ${String(said)}`).not.toContain(secret);
  });
});
