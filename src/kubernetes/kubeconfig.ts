/**
 * A kubeconfig as text becomes what its current context says: where the API is, how it is known, who this program is.
 *
 * Read as kubectl reads it: what is given as data goes before the file of the same thing, relative paths are relative to
 * the kubeconfig's directory, a number where a text belongs is refused. No file is opened here (access.ts does that),
 * so nothing depends on the host. No message shows a value that could be a secret: they name the field and what kind
 * of thing is there.
 */
import { dirname, resolve } from "node:path";
import * as v from "valibot";
import { quote, quotePath } from "../core/problem.ts";
import { SettingsError } from "../errors.ts";

/** A PEM text, or the file that holds it. */
export type PemSource =
  | { readonly kind: "data"; readonly field: string; readonly text: string }
  | { readonly kind: "file"; readonly field: string; readonly path: string };

/** A program that gives credentials (client.authentication.k8s.io). */
export interface ExecPlugin {
  readonly apiVersion: "client.authentication.k8s.io/v1" | "client.authentication.k8s.io/v1beta1";
  /** A name for PATH, or an absolute path. */
  readonly command: string;
  readonly args: readonly string[];
  /** Besides this program's environment. */
  readonly env: Readonly<Record<string, string>>;
  /** What its maker says to who has not got it. */
  readonly installHint?: string;
  /** Present: the plugin wants to know which cluster it is for, and this is its own setting there, if any. */
  readonly clusterInfo?: { readonly config?: unknown };
}

/** What says to the API who this program is. */
export interface KubeUser {
  readonly certificate?: PemSource;
  readonly key?: PemSource;
  readonly token?: string;
  /** Read again for each connection: the token in it rotates. Goes before `token`. */
  readonly tokenFile?: string;
  readonly basic?: { readonly username: string; readonly password: string };
  readonly exec?: ExecPlugin;
}

/** One API server and one user of it. */
export interface KubeAccess {
  /** How messages name where this comes from, like `kubeconfig "/etc/k.yaml"`. */
  readonly origin: string;
  /** https or http, without a slash at the end. */
  readonly server: string;
  /** Absent: the CAs of the system. */
  readonly ca?: PemSource;
  /** The server's certificate is checked for this name instead of the one that is dialled. */
  readonly serverName?: string;
  /** The server's certificate is not checked at all. */
  readonly insecure: boolean;
  /** http or https. */
  readonly proxyUrl?: string;
  readonly user: KubeUser;
}

/** YAML 1.1 has more words for true, which kubectl takes and YAML 1.2 does not; also as Yes and YES. */
const trueWords = ["y", "yes", "on", "true"];
const booleanOrWord = v.pipe(
  v.union([
    v.boolean(),
    v.pipe(v.string(), v.toLowerCase(), v.picklist([...trueWords, "n", "no", "off", "false"])),
  ]),
  v.transform((found) => found === true || trueWords.includes(String(found))),
);

/** An object as YAML knows it: a list is none, though JavaScript would take it for one. */
function entry<E extends v.ObjectEntries>(entries: E) {
  return v.pipe(
    v.unknown(),
    v.check((found) => kindOf(found) === "an object"),
    v.object(entries),
  );
}

const text = v.nullish(v.string());
const clusterSchema = entry({
  server: text,
  "certificate-authority": text,
  "certificate-authority-data": text,
  "tls-server-name": text,
  "insecure-skip-tls-verify": v.nullish(booleanOrWord),
  "proxy-url": text,
  extensions: v.nullish(v.array(entry({ name: v.string(), extension: v.unknown() }))),
});
const execSchema = entry({
  apiVersion: text,
  command: text,
  args: v.nullish(v.array(v.string())),
  env: v.nullish(v.array(entry({ name: v.string(), value: v.string() }))),
  installHint: text,
  provideClusterInfo: v.nullish(booleanOrWord),
  interactiveMode: text,
});
const userSchema = entry({
  "client-certificate": text,
  "client-certificate-data": text,
  "client-key": text,
  "client-key-data": text,
  token: text,
  tokenFile: text,
  username: text,
  password: text,
  as: text,
  "as-uid": text,
  "as-groups": v.nullish(v.array(v.string())),
  exec: v.nullish(execSchema),
  "auth-provider": v.nullish(v.unknown()),
});
const kubeconfigSchema = entry({
  "current-context": text,
  clusters: v.nullish(v.array(entry({ name: v.string(), cluster: clusterSchema }))),
  contexts: v.nullish(v.array(entry({ name: v.string(), context: entry({ cluster: text, user: text }) }))),
  users: v.nullish(v.array(entry({ name: v.string(), user: v.nullish(userSchema) }))),
});

type Cluster = v.InferOutput<typeof clusterSchema>;
type User = v.InferOutput<typeof userSchema>;
type Exec = v.InferOutput<typeof execSchema>;

/** Name of the extension of a cluster in which an exec plugin finds its own settings. */
const execExtension = "client.authentication.k8s.io/exec";

/** The server of a kubeconfig that has none for its context; kubectl goes to localhost:8080 then, which nobody means. */
const howToChoose = "`kubectl config use-context NAME --kubeconfig FILE` chooses one";

/** What the current context of a kubeconfig says. `path` is absolute and only named. Throws SettingsError. */
export function parseKubeconfig(content: string, path: string): KubeAccess {
  const fail = failer(path);
  const config = parseYaml(content, fail);
  const contexts = config.contexts ?? [];
  const current = config["current-context"] ?? "";
  const names = contexts.map(({ name }) => quote(name)).join(", ");
  if (current === "") {
    throw fail(
      `current-context is missing or empty, expected ${names === "" ? "the name of a context" : `one of ${names}`}`,
      howToChoose,
    );
  }
  const context = contexts.find(({ name }) => name === current)?.context;
  if (context === undefined) {
    const there = names === "" ? "it has no contexts" : `it has ${names}`;
    throw fail(`context ${quote(current)}, which current-context names, is missing; ${there}`, howToChoose);
  }
  const clusterName = context.cluster ?? "";
  const cluster = config.clusters?.find(({ name }) => name === clusterName)?.cluster;
  if (cluster === undefined) {
    throw fail(`cluster ${quote(clusterName)}, which context ${quote(current)} names, is missing`);
  }
  const userName = context.user ?? "";
  const user = config.users?.find(({ name }) => name === userName);
  if (user === undefined && userName !== "") {
    throw fail(`user ${quote(userName)}, which context ${quote(current)} names, is missing`);
  }
  const directory = dirname(path);
  return {
    origin: `kubeconfig ${quotePath(path)}`,
    ...readCluster(cluster, { name: clusterName, directory, fail }),
    user: readUser(user?.user ?? undefined, cluster, { name: userName, directory, fail }),
  };
}

/** The error for a kubeconfig that cannot be used; also for who reads it. */
export function unusableKubeconfig(path: string, reason: string, hint?: string): SettingsError {
  return new SettingsError(
    `Cannot use kubeconfig ${quotePath(path)}: ${reason}`,
    hint === undefined ? {} : { hint },
  );
}

type Fail = (reason: string, hint?: string) => SettingsError;

function failer(path: string): Fail {
  return (reason, hint) => unusableKubeconfig(path, reason, hint);
}

function parseYaml(content: string, fail: Fail): v.InferOutput<typeof kubeconfigSchema> {
  let document: unknown;
  try {
    document = Bun.YAML.parse(content);
  } catch (error) {
    // Bun's message says what kind of thing is wrong and quotes nothing of the text; only that kind is shown.
    const reason =
      error instanceof SyntaxError ? error.message.replace(/^YAML Parse error: /, "") : "too deep";
    throw fail(`it is not YAML (${reason})`, "It must be a file that `kubectl --kubeconfig FILE` can read");
  }
  if (kindOf(document) !== "an object") {
    const found = Array.isArray(document) ? "a list or several documents" : kindOf(document);
    throw fail(
      `it holds ${found === "missing" ? "nothing" : found}, expected one YAML object with clusters, contexts and users`,
    );
  }
  const result = v.safeParse(kubeconfigSchema, document, { abortEarly: true });
  if (result.success) return result.output;
  const [issue] = result.issues;
  // Not the issue's message: it shows the value, which may be a token.
  const field = v.getDotPath(issue) ?? "";
  const found = kindOf(issue.input);
  throw fail(
    `${field} is ${found}${found === "missing" ? "" : `, expected ${expectedOf(issue)}`}`,
    typeof issue.input === "number" ? "A number that is meant as a text stands in quotes" : undefined,
  );
}

function kindOf(found: unknown): string {
  if (found === undefined || found === null) return "missing";
  if (Array.isArray(found)) return "a list";
  if (typeof found === "string") return "a text";
  if (typeof found === "number") return "a number";
  return typeof found === "boolean" ? "true or false" : "an object";
}

function expectedOf({ type, expected }: v.BaseIssue<unknown>): string {
  if (type === "array") return "a list";
  if (type === "check" || type === "object") return "an object";
  return expected === "string" ? "a text" : "true or false";
}

interface Entry {
  readonly name: string;
  readonly directory: string;
  readonly fail: Fail;
}

function readCluster(
  cluster: Cluster,
  { name, directory, fail }: Entry,
): Pick<KubeAccess, "server" | "insecure" | "ca" | "serverName" | "proxyUrl"> {
  const of = `of cluster ${quote(name)}`;
  const server = given(cluster.server);
  if (server === undefined) throw fail(`server ${of} is missing, expected a URL like https://192.0.2.1:6443`);
  const url = parseUrl(server);
  if (server.includes("@")) {
    // Not shown: what stands before the sign may be a password.
    throw fail(
      `server ${of} has a user name or a password in it, expected a URL like https://192.0.2.1:6443`,
      "Credentials belong to the user of the context",
    );
  }
  if (url === undefined || url.search !== "" || url.hash !== "") {
    throw fail(`server ${of} is ${quote(server)}, expected a URL like https://192.0.2.1:6443`);
  }
  const ca = pemSource(cluster, "certificate-authority", of, { directory, fail });
  const insecure = cluster["insecure-skip-tls-verify"] ?? false;
  if (insecure && ca !== undefined) {
    throw fail(
      `cluster ${quote(name)} has both insecure-skip-tls-verify and a certificate-authority, expected one of them`,
      "Take insecure-skip-tls-verify out: the CA is there to check the server with",
    );
  }
  const proxy = given(cluster["proxy-url"]);
  if (proxy !== undefined && parseUrl(proxy) === undefined) {
    // Not shown: a proxy's password stands in its URL.
    throw fail(`proxy-url ${of} cannot be used, expected http://HOST:PORT or https://HOST:PORT`);
  }
  const serverName = given(cluster["tls-server-name"]);
  return {
    server: url.href.replace(/\/+$/, ""),
    insecure,
    ...(ca === undefined ? {} : { ca }),
    ...(serverName === undefined ? {} : { serverName }),
    ...(proxy === undefined ? {} : { proxyUrl: proxy }),
  };
}

function readUser(user: User | undefined, cluster: Cluster, { name, directory, fail }: Entry): KubeUser {
  if (user === undefined) return {};
  const of = `of user ${quote(name)}`;
  if (user["auth-provider"] !== undefined && user["auth-provider"] !== null) {
    throw fail(`user ${quote(name)} has an auth-provider, which kubectl has given up since 1.26`, useExec);
  }
  if (
    given(user.as) !== undefined ||
    given(user["as-uid"]) !== undefined ||
    (user["as-groups"] ?? []).length > 0
  ) {
    throw fail(`user ${quote(name)} acts as another user (as), which is not supported`);
  }
  const certificate = pemSource(user, "client-certificate", of, { directory, fail });
  const key = pemSource(user, "client-key", of, { directory, fail });
  if ((certificate === undefined) !== (key === undefined)) {
    const [there, missing] =
      certificate === undefined ? ["client-key", "client-certificate"] : ["client-certificate", "client-key"];
    throw fail(`user ${quote(name)} has a ${there} and no ${missing}, expected both`);
  }
  const token = given(user.token);
  if (token !== undefined && !isToken(token)) throw fail(`token ${of} is not printable ASCII without spaces`);
  const tokenFile = given(user.tokenFile);
  const username = given(user.username);
  const exec =
    user.exec === undefined || user.exec === null
      ? undefined
      : readExec(user.exec, cluster, { name, directory, fail });
  return {
    ...(certificate === undefined ? {} : { certificate }),
    ...(key === undefined ? {} : { key }),
    ...(token === undefined ? {} : { token }),
    ...(tokenFile === undefined ? {} : { tokenFile: resolve(directory, tokenFile) }),
    ...(username === undefined ? {} : { basic: { username, password: user.password ?? "" } }),
    ...(exec === undefined ? {} : { exec }),
  };
}

const useExec = "Use an exec plugin, a token or a client certificate";

function readExec(exec: Exec, cluster: Cluster, { name, directory, fail }: Entry): ExecPlugin {
  const of = `of user ${quote(name)}`;
  const command = given(exec.command);
  if (command === undefined) throw fail(`exec.command ${of} is missing, expected the name of a program`);
  const { apiVersion } = exec;
  if (
    apiVersion !== "client.authentication.k8s.io/v1" &&
    apiVersion !== "client.authentication.k8s.io/v1beta1"
  ) {
    throw fail(
      `exec.apiVersion ${of} is ${quote(apiVersion ?? "")}, expected client.authentication.k8s.io/v1 or v1beta1`,
      "Make the kubeconfig anew with a current version of the tool that made it",
    );
  }
  if (exec.interactiveMode === "Always") {
    throw fail(`exec.interactiveMode ${of} is Always, but nobody sits at an agent's terminal`, useExec);
  }
  const installHint = given(exec.installHint);
  const extension = cluster.extensions?.find((each) => each.name === execExtension)?.extension;
  if (!isTree(extension)) throw fail(`extension ${quote(execExtension)} of its cluster holds itself`);
  return {
    apiVersion,
    // A path is relative to the kubeconfig, a name is looked up in PATH.
    command: command.includes("/") ? resolve(directory, command) : command,
    args: exec.args ?? [],
    env: Object.fromEntries((exec.env ?? []).map((each) => [each.name, each.value])),
    ...(installHint === undefined ? {} : { installHint }),
    ...(exec.provideClusterInfo === true
      ? { clusterInfo: extension === undefined ? {} : { config: extension } }
      : {}),
  };
}

/** An alias of YAML can stand inside what it stands for; as JSON, which the plugin gets, that has no end. */
function isTree(found: unknown): boolean {
  try {
    JSON.stringify(found);
    return true;
  } catch {
    return false;
  }
}

/** What `field` and `field`-data say. Throws when the data is not base64. */
function pemSource<Field extends string>(
  entry: { readonly [Key in Field | `${Field}-data`]?: string | null | undefined },
  field: Field,
  of: string,
  { directory, fail }: Pick<Entry, "directory" | "fail">,
): PemSource | undefined {
  const data = given(entry[`${field}-data`]);
  if (data !== undefined) {
    try {
      return {
        kind: "data",
        field: `${field}-data`,
        text: new TextDecoder().decode(Uint8Array.fromBase64(data)),
      };
    } catch {
      // The decoder's error is left out on purpose: it may quote what it read, and keys come this way too.
      throw fail(`${field}-data ${of} is not base64, expected a PEM file in base64`);
    }
  }
  const path = given(entry[field]);
  return path === undefined ? undefined : { kind: "file", field, path: resolve(directory, path) };
}

/** A header of HTTP takes it, and nothing of it can end the line. */
export function isToken(found: string): boolean {
  return /^[\x21-\x7e]+$/.test(found);
}

function parseUrl(found: string): URL | undefined {
  const url = URL.parse(found);
  return url !== null && (url.protocol === "https:" || url.protocol === "http:") ? url : undefined;
}

/** As kubectl, for which an empty text is none. */
function given(found: string | null | undefined): string | undefined {
  return found === null || found === "" ? undefined : found;
}
