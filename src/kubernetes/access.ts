/**
 * From a kubeconfig, or the service account of a pod, to what a request needs: URL, TLS, headers.
 *
 * Everything is read anew for each connection, the kubeconfig itself too, since all of it is replaced under a running
 * agent: tokens rotate, certificates are renewed. Only what an exec plugin gave is kept, until it expires or the API
 * refuses it. What is handed out fits together (certificate and key, and in time), so that a TLS library which says
 * nothing but "failed to open socket" is not asked. Secrets are in no message.
 */
import { join } from "node:path";
import type { Clock } from "../async.ts";
import { quote, quotePath } from "../core/problem.ts";
import { SettingsError } from "../errors.ts";
import { revealKey, secretLines } from "../trust/credentials.ts";
import { findPlugin, runPlugin, type PluginCluster, type PluginCredentials } from "./exec-plugin.ts";
import {
  isToken,
  parseKubeconfig,
  unusableKubeconfig,
  type ExecPlugin,
  type KubeAccess,
  type KubeUser,
  type PemSource,
} from "./kubeconfig.ts";
import { inCluster } from "./names.ts";
import { pairOf, readCa, readPair, readSmallFile, type Pair } from "./pem.ts";

/** Where Kubernetes puts a pod's service account. */
export const serviceAccountDirectory = "/var/run/secrets/kubernetes.io/serviceaccount";

/** What a request to the API is made with. */
export interface ApiConnection {
  /** Without a slash at the end. */
  readonly server: string;
  readonly headers: Readonly<Record<string, string>>;
  /** As Bun's fetch takes it; absent with http. */
  readonly tls?: {
    readonly ca?: string;
    readonly cert?: string;
    readonly key?: string;
    readonly serverName?: string;
    readonly rejectUnauthorized?: false;
  };
  readonly proxy?: string;
  /** Everything in here that nobody may see, in each form in which somebody could repeat it. */
  readonly secrets: readonly string[];
  /** Who this program says it is, in words: `client certificate "CN=system:node:n1"`. */
  readonly identity: string;
}

export interface AccessOptions {
  /** Absolute path, or `in-cluster`. */
  readonly kubeconfig: string;
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly clock: Pick<Clock, "sleep" | "wallTime">;
  /** Default: where Kubernetes puts it. */
  readonly serviceAccountDirectory?: string;
}

/** A kubeconfig of a big fleet has some hundred kilobytes. */
const maxKubeconfigBytes = 4 * 1024 * 1024;
const maxTokenBytes = 64 * 1024;

export class ApiAccess {
  readonly #options: AccessOptions;
  #given: { readonly plugin: string; readonly credentials: PluginCredentials } | undefined;

  constructor(options: AccessOptions) {
    this.#options = options;
  }

  /**
   * Reads everything that there is to read, and runs nothing. Throws SettingsError for what cannot be used as it is;
   * returns what an operator should be warned of.
   */
  async check(): Promise<readonly string[]> {
    const access = await this.#read();
    if (access.ca !== undefined) await readCa(access.ca, access.origin);
    const { early } = await this.#credentials(access, undefined);
    // No reason to end: a machine whose clock is not set yet may be starting.
    const warnings = early === undefined ? [] : [early.message];
    if (isPlain(access)) {
      return [
        ...warnings,
        `No TLS to the Kubernetes API ${access.server}: whoever can answer in its place decides about this node's pod prefixes`,
      ];
    }
    if (!access.insecure) return warnings;
    return [
      ...warnings,
      `insecure-skip-tls-verify in ${access.origin}: whoever can answer in place of ${access.server} decides about this node's pod prefixes, and gets its credentials`,
    ];
  }

  /** All that a connection needs, read now. Throws ClusternetError; runs the exec plugin when there is one. */
  async connect(signal: AbortSignal): Promise<ApiConnection> {
    const access = await this.#read();
    const proxy = access.proxyUrl === undefined ? {} : { proxy: access.proxyUrl };
    const ofProxy = access.proxyUrl === undefined ? [] : secretsOfUrl(access.proxyUrl);
    // As kubectl: over a line that anybody can read no credentials go.
    if (isPlain(access)) {
      const identity = "nobody (no TLS)";
      return { server: access.server, headers: {}, secrets: ofProxy, identity, ...proxy };
    }
    const ca = access.ca === undefined ? undefined : await readCa(access.ca, access.origin);
    const {
      headers = {},
      secrets = [],
      cert,
      key,
      early,
      identity,
    } = await this.#credentials(access, { signal, ca });
    if (early !== undefined) throw early;
    return {
      server: access.server,
      headers,
      secrets: [...secrets, ...(key === undefined ? [] : secretLines(key)), ...ofProxy],
      identity,
      ...proxy,
      tls: {
        ...(ca === undefined ? {} : { ca }),
        ...(cert === undefined || key === undefined ? {} : { cert, key: revealKey(key) }),
        ...(access.serverName === undefined ? {} : { serverName: access.serverName }),
        ...(access.insecure ? { rejectUnauthorized: false } : {}),
      },
    };
  }

  /** The API did not take the credentials: what a plugin gave is not used again. */
  refused(): void {
    this.#given = undefined;
  }

  async #read(): Promise<KubeAccess> {
    const { kubeconfig, environment } = this.#options;
    if (kubeconfig === inCluster) {
      return inClusterAccess(environment, this.#options.serviceAccountDirectory ?? serviceAccountDirectory);
    }
    const { text } = await readSmallFile(kubeconfig, maxKubeconfigBytes, (reason) =>
      unusableKubeconfig(kubeconfig, reason, "--kubeconfig says where it is"),
    );
    return parseKubeconfig(text, kubeconfig);
  }

  /** `run`: an exec plugin may be run for it; without, it must only be there. */
  async #credentials(
    access: KubeAccess,
    run: { readonly signal: AbortSignal; readonly ca: string | undefined } | undefined,
  ): Promise<Credentials> {
    const { user, origin } = access;
    const now = this.#options.clock.wallTime();
    const pair =
      user.certificate === undefined || user.key === undefined
        ? undefined
        : await readPair(user.certificate, user.key, origin, now);
    const bearer = await readBearer(user, origin);
    if (pair !== undefined || bearer !== undefined)
      return { ...pair, ...bearer, identity: identityOf(pair, bearer) };
    if (user.exec === undefined) return { identity: "nobody (no credentials)" };
    if (run === undefined) {
      findPlugin(user.exec, this.#options.environment["PATH"]);
      return { identity: "whoever the exec plugin says" };
    }
    return this.#ofPlugin(await this.#askPlugin(user.exec, access, run), user.exec, now);
  }

  async #askPlugin(
    plugin: ExecPlugin,
    access: KubeAccess,
    { signal, ca }: { readonly signal: AbortSignal; readonly ca: string | undefined },
  ): Promise<PluginCredentials> {
    const { environment, clock } = this.#options;
    const cluster = pluginCluster(access, plugin, ca);
    const name = JSON.stringify([plugin, cluster]);
    const { expiresAt } = this.#given?.credentials ?? {};
    if (this.#given?.plugin === name && (expiresAt === undefined || expiresAt > clock.wallTime())) {
      return this.#given.credentials;
    }
    this.#given = undefined;
    const credentials = await runPlugin(plugin, { cluster, environment, clock }, signal);
    this.#given = { plugin: name, credentials };
    return credentials;
  }

  #ofPlugin({ token, certificate }: PluginCredentials, { command }: ExecPlugin, now: Date): Credentials {
    const from = `exec plugin ${quote(command)}`;
    const pair =
      certificate === undefined
        ? undefined
        : pairOf(
            dataOf("clientCertificateData", certificate.certificate),
            certificate.certificate,
            dataOf("clientKeyData", certificate.key),
            certificate.key,
            { origin: from, now },
          );
    const bearer = token === undefined ? undefined : bearerOf(token, `token of ${from}`);
    return { ...pair, ...bearer, identity: identityOf(pair, bearer) };
  }
}

interface Bearer {
  readonly headers: Readonly<Record<string, string>>;
  readonly secrets: readonly string[];
  /** Which token it is, in words. */
  readonly source: string;
}

type Credentials = Partial<Pair> & Partial<Bearer> & { readonly identity: string };

function dataOf(field: string, text: string): PemSource {
  return { kind: "data", field, text };
}

function isPlain({ server }: KubeAccess): boolean {
  return server.startsWith("http:");
}

function identityOf(pair: Pair | undefined, bearer: Bearer | undefined): string {
  const certificate = pair === undefined ? [] : [`client certificate ${pair.name}`];
  return [...certificate, ...(bearer === undefined ? [] : [bearer.source])].join(" and ");
}

function inClusterAccess(
  environment: Readonly<Record<string, string | undefined>>,
  directory: string,
): KubeAccess {
  const host = environment["KUBERNETES_SERVICE_HOST"] ?? "";
  const port = environment["KUBERNETES_SERVICE_PORT"] ?? "";
  const origin = `service account of this pod (--kubeconfig ${inCluster})`;
  const server = URL.parse(`https://${host.includes(":") ? `[${host}]` : host}:${port}`);
  if (host === "" || port === "" || server === null) {
    throw new SettingsError(
      `Cannot use the ${origin}: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set to an address and a port`,
      { hint: "Kubernetes sets them in every pod; outside of one, give --kubeconfig a file" },
    );
  }
  return {
    origin,
    server: server.origin,
    insecure: false,
    ca: { kind: "file", field: "ca.crt", path: join(directory, "ca.crt") },
    user: { tokenFile: join(directory, "token") },
  };
}

/** The cluster as an exec plugin is told of it. */
function pluginCluster(
  access: KubeAccess,
  { clusterInfo }: ExecPlugin,
  ca: string | undefined,
): PluginCluster {
  if (clusterInfo === undefined) return {};
  return {
    server: access.server,
    ...(access.serverName === undefined ? {} : { "tls-server-name": access.serverName }),
    ...(access.insecure ? { "insecure-skip-tls-verify": true } : {}),
    ...(ca === undefined ? {} : { "certificate-authority-data": new TextEncoder().encode(ca).toBase64() }),
    ...(access.proxyUrl === undefined ? {} : { "proxy-url": access.proxyUrl }),
    ...(clusterInfo.config === undefined ? {} : { config: clusterInfo.config }),
  };
}

async function readBearer(user: KubeUser, origin: string): Promise<Bearer | undefined> {
  const { tokenFile, token, basic } = user;
  if (tokenFile !== undefined) {
    const fail = (reason: string): SettingsError =>
      new SettingsError(`Cannot read token ${quotePath(tokenFile)} of the ${origin}: ${reason}`);
    const found = (await readSmallFile(tokenFile, maxTokenBytes, fail)).text.trim();
    if (found === "") throw fail("it is empty, expected a token");
    if (!isToken(found)) throw fail("it is not printable ASCII without spaces, expected a token");
    return bearerOf(found, `token of ${quotePath(tokenFile)}`);
  }
  if (token !== undefined) return bearerOf(token, `token of the ${origin}`);
  if (basic === undefined) return undefined;
  const pair = new TextEncoder().encode(`${basic.username}:${basic.password}`).toBase64();
  return {
    headers: { authorization: `Basic ${pair}` },
    secrets: [basic.password, pair],
    source: `user name ${quote(basic.username)}`,
  };
}

function bearerOf(token: string, source: string): Bearer {
  return { headers: { authorization: `Bearer ${token}` }, secrets: [token], source };
}

/** The password of a URL, as it is written and as it is meant. */
function secretsOfUrl(url: string): readonly string[] {
  const { password } = new URL(url);
  try {
    return [password, decodeURIComponent(password)];
  } catch {
    // A % that begins no escape: then it is meant as it is written.
    return [password];
  }
}
