/**
 * The two requests to the Kubernetes API: list and watch, of one Node each.
 *
 * Both select the Node by `fieldSelector=metadata.name=NAME`, which is what the Node authorizer allows a node's own
 * identity, and what makes an RBAC rule with resourceNames match. Bun's fetch speaks TLS (@kubernetes/client-node does
 * not hand its certificates on under Bun). Whatever answers there is bounded: how long it may think, how long it may be
 * silent, how long a line is. Redirects are not followed, since they would carry the credentials elsewhere.
 */
import type { Clock } from "../async.ts";
import { quote } from "../core/problem.ts";
import { ClusternetError, messageOf, type ErrorOptions } from "../errors.ts";
import { version } from "../version.ts";
import type { ApiConnection } from "./access.ts";
import {
  decodeNodeList,
  decodeStatus,
  decodeWatchEvent,
  type ApiStatus,
  type NodeObject,
  type WatchEvent,
} from "./node-object.ts";

/** An answer of the API server that is not what was asked for. */
export class ApiError extends ClusternetError {
  override readonly name = "ApiError";
  /** Of HTTP, or of the error in a watch. */
  readonly status: number;

  constructor(message: string, options: ErrorOptions & { readonly status: number }) {
    super(message, options);
    this.status = options.status;
  }
}

/** A watch that was open and ended otherwise than it should: cut, or silent. */
export class StreamLostError extends ClusternetError {
  override readonly name = "StreamLostError";
}

/** Status of a watch from a version that the API server does not remember any more. */
export const gone = 410;

/** Longest wait until an answer begins, and for the whole of a list. */
const answerMs = 30_000;
/** Longest JSON of a Node: etcd takes 1.5 MB of it in another form. */
const maxNodeCharacters = 16 * 1024 * 1024;
const shownCharacters = 300;

/** What both requests need. */
export interface RequestContext {
  readonly connection: ApiConnection;
  /** Of the Node object. */
  readonly name: string;
  readonly clock: Pick<Clock, "sleep">;
}

export interface WatchOptions {
  readonly resourceVersion: string;
  /** The API server ends the stream itself after this time. */
  readonly timeoutSeconds: number;
  /** A stream that says nothing for so long is lost: more than `timeoutSeconds`. */
  readonly silenceMs: number;
  /** Called when the API server has agreed to the watch. */
  readonly opened: () => void;
}

/** The Node, undefined when there is none of this name, and the version of which this is true. Throws ClusternetError. */
export async function listNode(
  context: RequestContext,
  signal: AbortSignal,
): Promise<{ readonly resourceVersion: string; readonly node: NodeObject | undefined }> {
  const { name } = context;
  return await withLimit(context, signal, async (limit) => {
    limit.within(answerMs, "no answer");
    const response = await request(context, "list", {}, limit);
    const text = await readAll(response, limit);
    try {
      const { resourceVersion, nodes } = decodeNodeList(text);
      // Something in between may not know field selectors.
      return { resourceVersion, node: nodes.find((each) => each.name === name) };
    } catch (error) {
      throw new ClusternetError(`${limit.what}: its answer cannot be read: ${messageOf(error)}`, {
        hint: "Is this the address of a Kubernetes API server?",
      });
    }
  });
}

/**
 * What happens to the Node from `resourceVersion` on, until the API server ends the stream as agreed. Throws
 * StreamLostError when it ends otherwise, ApiError with status 410 when the version is too old.
 */
export async function* watchNode(
  context: RequestContext,
  options: WatchOptions,
  signal: AbortSignal,
): AsyncIterable<WatchEvent> {
  const limit = new Limit(context, "watch", signal);
  try {
    limit.within(answerMs, "no answer");
    const { resourceVersion, timeoutSeconds } = options;
    const query = {
      watch: "1",
      allowWatchBookmarks: "true",
      resourceVersion,
      timeoutSeconds: String(timeoutSeconds),
    };
    const response = await request(context, "watch", query, limit);
    options.opened();
    limit.within(options.silenceMs, "silent");
    for await (const line of readLines(response, limit)) {
      limit.within(options.silenceMs, "silent");
      const event = decodeLine(line, limit.what);
      if (event.kind === "error") throw statusError(context, "watch", event.status, event.status.code);
      // Something in between may not know field selectors.
      const isOther = "node" in event && event.node.name !== context.name;
      yield isOther ? { kind: "bookmark", resourceVersion: event.node.resourceVersion } : event;
    }
  } finally {
    limit.end();
  }
}

function decodeLine(line: string, what: string): WatchEvent {
  try {
    return decodeWatchEvent(line);
  } catch (error) {
    throw new StreamLostError(`${what}: a line of it cannot be read: ${messageOf(error)}`);
  }
}

/** One request's time limit, which can be set anew; ends with the caller's signal too. */
class Limit {
  /** How an error begins. */
  readonly what: string;
  readonly connection: ApiConnection;
  readonly signal: AbortSignal;
  /** What passed its time, for the error. */
  late: string | undefined;
  readonly #clock: Pick<Clock, "sleep">;
  readonly #caller: AbortSignal;
  readonly #stop = new AbortController();
  #timer = new AbortController();

  constructor({ connection, name, clock }: RequestContext, verb: "list" | "watch", caller: AbortSignal) {
    this.what = `Cannot ${verb} Kubernetes Node ${quote(name)} at ${connection.server}`;
    this.connection = connection;
    this.#clock = clock;
    this.#caller = caller;
    this.signal = AbortSignal.any([caller, this.#stop.signal]);
  }

  within(ms: number, what: string): void {
    this.#timer.abort();
    const timer = new AbortController();
    this.#timer = timer;
    void this.#watch(ms, what, timer.signal);
  }

  end(): void {
    this.#timer.abort();
    // Also lets go of a connection that nobody reads from any more.
    this.#stop.abort();
  }

  async #watch(ms: number, what: string, timer: AbortSignal): Promise<void> {
    await this.#clock.sleep(ms, AbortSignal.any([timer, this.#caller]));
    if (timer.aborted || this.#caller.aborted) return;
    this.late = `${what} for ${ms / 1000} s`;
    this.#stop.abort();
  }
}

async function withLimit<T>(
  context: RequestContext,
  signal: AbortSignal,
  use: (limit: Limit) => Promise<T>,
): Promise<T> {
  const limit = new Limit(context, "list", signal);
  try {
    return await use(limit);
  } finally {
    limit.end();
  }
}

/** The answer, when it is 200. Throws ClusternetError that says what it is otherwise. */
async function request(
  context: RequestContext,
  verb: "list" | "watch",
  query: Readonly<Record<string, string>>,
  limit: Limit,
): Promise<Response> {
  const { connection, name } = context;
  const search = new URLSearchParams({ fieldSelector: `metadata.name=${name}`, ...query });
  const { tls, proxy } = connection;
  // As Bun's fetch takes it beside what the standard knows; its own limit of five minutes would end a quiet watch.
  const options: BunFetchRequestInit & { readonly timeout: false } = {
    headers: {
      accept: "application/json",
      // A compressed stream may hold back what is in it.
      "accept-encoding": "identity",
      "user-agent": `clusternet/${version}`,
      ...connection.headers,
    },
    redirect: "manual",
    keepalive: false,
    signal: limit.signal,
    timeout: false,
    ...(tls === undefined ? {} : { tls }),
    ...(proxy === undefined ? {} : { proxy }),
  };
  let response: Response;
  try {
    response = await fetch(`${connection.server}/api/v1/nodes?${search.toString()}`, options);
  } catch (error) {
    throw unreachable(limit, error);
  }
  if (response.status === 200) return response;
  let status: ApiStatus = { code: response.status, reason: "", message: "" };
  try {
    status = decodeStatus(JSON.parse(await readAll(response, limit)));
  } catch {
    // Something else than Kubernetes answers, in whatever form: its status says enough.
  }
  throw statusError(context, verb, status, response.status);
}

/** What an operator can do about an answer. */
function statusError(
  { connection, name }: RequestContext,
  verb: "list" | "watch",
  { message, reason }: ApiStatus,
  status: number,
): ApiError {
  const said = message === "" ? reason : message;
  const words = said === "" ? "" : `: ${quote(withoutSecrets(said, connection), shownCharacters)}`;
  const found = (text: string, hint?: string): ApiError =>
    new ApiError(`Cannot ${verb} Kubernetes Node ${quote(name)} at ${connection.server}: ${text}`, {
      status,
      ...(hint === undefined ? {} : { hint }),
    });
  switch (status) {
    case 401:
      return found(
        `the API server does not accept the credentials, ${connection.identity} (401)`,
        "Give the kubeconfig credentials that are valid, of this cluster",
      );
    case 403:
      return found(
        `the right to ${verb} this Node is missing for ${connection.identity} (403)${words}`,
        `A ClusterRole with this rule, bound to that user, gives it: ${rbacRule(name)}. The identity of a node itself (system:node:NAME) has it for its own Node: --kubernetes-node must be that NAME`,
      );
    case gone:
      return found("the API server does not remember the version that was asked for any more (410)");
    default:
      return found(
        `it answers ${status}${words}`,
        status === 404 || (status >= 300 && status < 400)
          ? "Is this the address of a Kubernetes API server? Redirects are not followed"
          : undefined,
      );
  }
}

/** The least that RBAC must allow, as one line of YAML. */
function rbacRule(name: string): string {
  return `{apiGroups: [""], resources: ["nodes"], resourceNames: ["${name}"], verbs: ["list", "watch"]}`;
}

/** What others say may repeat what they were sent. To be applied before anything is cut or escaped. */
function withoutSecrets(text: string, { secrets }: ApiConnection): string {
  let shown = text;
  // The longest first: one may be a part of another.
  for (const secret of secrets.toSorted((a, b) => b.length - a.length)) {
    if (secret !== "") shown = shown.replaceAll(secret, "[redacted]");
  }
  return shown;
}

const notOfOurCa = "its certificate is not signed by the CA of the kubeconfig";

/** What Bun's fetch says by a code, in words. */
const reasons: Readonly<Record<string, string>> = {
  ECONNREFUSED: "connection refused",
  ENETUNREACH: "this host has no route to it",
  EHOSTUNREACH: "no machine answers at that address",
  ENOTFOUND: "its name is not known",
  EAI_AGAIN: "no name server answers",
  EPROTO: "what answers there does not speak TLS",
  Malformed_HTTP_Response: "what answers there does not speak HTTP",
  ECONNRESET: "the connection was closed",
  CERT_HAS_EXPIRED: "its certificate has expired",
  CERT_NOT_YET_VALID: "its certificate is not valid yet",
  ERR_TLS_CERT_ALTNAME_INVALID:
    "its certificate does not bear the name that was dialled (tls-server-name in the kubeconfig names another)",
  SELF_SIGNED_CERT_IN_CHAIN: notOfOurCa,
  DEPTH_ZERO_SELF_SIGNED_CERT: notOfOurCa,
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: notOfOurCa,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: notOfOurCa,
  UNABLE_TO_GET_ISSUER_CERT: `${notOfOurCa}, or the root above that CA is missing there`,
  UnsupportedProxyProtocol: "proxy-url is not that of an http or https proxy",
};

function reasonOf(error: unknown): string {
  const code = error instanceof Error && "code" in error ? String(error.code) : "";
  return reasons[code] ?? messageOf(error).replace(/\. For more information, pass `verbose.*$/, "");
}

function unreachable({ what, late, connection }: Limit, error: unknown): ClusternetError {
  return new ClusternetError(`${what}: ${late ?? withoutSecrets(reasonOf(error), connection)}`);
}

/** The whole body as text. Throws ClusternetError when it is too long, cut or late. */
async function readAll(response: Response, limit: Limit): Promise<string> {
  const decoder = new TextDecoder();
  let text = "";
  try {
    for await (const piece of bodyOf(response)) {
      text += decoder.decode(piece, { stream: true });
      if (text.length > maxNodeCharacters) {
        throw new ClusternetError(`${limit.what}: its answer is longer than ${maxNodeCharacters} characters`);
      }
    }
  } catch (error) {
    throw error instanceof ClusternetError ? error : unreachable(limit, error);
  }
  return text + decoder.decode();
}

/** Whole lines of the body. Throws StreamLostError when it is cut, also in the middle of a line, or silent. */
async function* readLines(response: Response, limit: Limit): AsyncIterable<string> {
  const decoder = new TextDecoder();
  // Joined when a line ends: a long one comes in many pieces.
  let pieces: string[] = [];
  let length = 0;
  try {
    for await (const bytes of bodyOf(response)) {
      const [first = "", ...more] = decoder.decode(bytes, { stream: true }).split("\n");
      pieces.push(first);
      length += first.length;
      if (length > maxNodeCharacters) {
        throw new StreamLostError(
          `${limit.what}: a line of it is longer than ${maxNodeCharacters} characters`,
        );
      }
      const rest = more.pop();
      if (rest === undefined) continue;
      const lines = [pieces.join(""), ...more];
      pieces = [rest];
      length = rest.length;
      for (const line of lines) if (line.trim() !== "") yield line;
    }
  } catch (error) {
    if (error instanceof ClusternetError) throw error;
    throw new StreamLostError(unreachable(limit, error).message);
  }
  if (pieces.join("").trim() !== "")
    throw new StreamLostError(`${limit.what}: it ended in the middle of a line`);
}

function bodyOf(response: Response): AsyncIterable<Uint8Array> {
  return response.body ?? new ReadableStream<Uint8Array>({ start: (controller) => controller.close() });
}
