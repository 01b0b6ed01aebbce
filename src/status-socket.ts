/**
 * The socket of a running agent: HTTP on `<data-dir>/<interface>.sock`, and the client that asks it.
 *
 * Mode 0600 from the first instant, so that nobody but the owner ever connects. The agent holds the lock of its
 * place before it serves, so a socket file that is there already is a dead agent's and is replaced. When the file
 * or its directory vanishes, `ensure` binds anew.
 */
import { lstatSync } from "node:fs";
import * as v from "valibot";
import { ClusternetError, isSystemError, messageOf } from "./errors.ts";
import { bindPrivateSocket } from "./host/files.ts";
import { type Status, statusSchema } from "./status.ts";

/** What the agent answers with. */
export interface StatusHandlers {
  status(): Status | Promise<Status>;
  /** What hangs, in words; empty: every loop has turned within the last 60 s. */
  unhealthy(): readonly string[];
  /** What is missing, in words; empty: a mesh is applied. */
  notReady(): readonly string[];
}

export interface StatusServer {
  /** Binds the socket again when its file is no longer ours. Throws ClusternetError when that cannot be done. */
  ensure(): Promise<void>;
  /** Ends all connections and removes the socket. */
  stop(): Promise<void>;
}

/** Answers one GET of `/status`, `/healthz` or `/readyz`. */
export async function answerStatusRequest(request: Request, handlers: StatusHandlers): Promise<Response> {
  if (request.method !== "GET") return new Response("expected GET\n", { status: 405 });
  const { pathname } = new URL(request.url);
  if (pathname === "/status") return Response.json(await handlers.status());
  if (pathname === "/healthz") return verdict(handlers.unhealthy());
  if (pathname === "/readyz") return verdict(handlers.notReady());
  return new Response("expected /status, /healthz or /readyz\n", { status: 404 });
}

function verdict(reasons: readonly string[]): Response {
  return reasons.length === 0
    ? new Response("ok\n")
    : new Response(reasons.map((reason) => `${reason}\n`).join(""), { status: 503 });
}

/** Serves on the socket. Throws ClusternetError when it cannot be bound. */
export function serveStatus(path: string, handlers: StatusHandlers): StatusServer {
  let bound = bind(path, handlers);
  return {
    async ensure() {
      if (identityOf(path) === bound.identity) return;
      // First the old one: stopping a server removes the file at its path, whoever made it.
      await bound.server.stop(true);
      bound = bind(path, handlers);
    },
    async stop() {
      const found = identityOf(path);
      // Stopping removes the file at the path: not when somebody else has put one there.
      if (found === undefined || found === bound.identity) await bound.server.stop(true);
      else bound.server.unref();
    },
  };
}

interface Bound {
  readonly server: Bun.Server<undefined>;
  readonly identity: string | undefined;
}

function bind(path: string, handlers: StatusHandlers): Bound {
  try {
    const server = bindPrivateSocket(path, () =>
      Bun.serve({ unix: path, fetch: (request) => answerStatusRequest(request, handlers) }),
    );
    return { server, identity: identityOf(path) };
  } catch (error) {
    throw new ClusternetError(`Cannot listen on socket "${path}"`, { cause: error });
  }
}

/** Which file is there; the time is part of it since numbers of inodes are used again, and a changed mode counts. */
function identityOf(path: string): string | undefined {
  const found = lstatSync(path, { bigint: true, throwIfNoEntry: false });
  return found === undefined ? undefined : `${found.dev} ${found.ino} ${found.ctimeNs}`;
}

export type FetchedStatus =
  | { readonly kind: "status"; readonly status: Status }
  /** No agent listens there. */
  | { readonly kind: "absent" }
  /** Somebody holds the socket and gives no usable answer. */
  | { readonly kind: "silent"; readonly reason: string };

/** Asks the agent behind the socket, for at most `timeoutMs` in all. Never throws for what the other side does. */
export async function fetchStatus(path: string, timeoutMs: number): Promise<FetchedStatus> {
  try {
    const response = await fetch("http://clusternet/status", {
      unix: path,
      signal: AbortSignal.timeout(timeoutMs),
    });
    if (!response.ok) return { kind: "silent", reason: `it answered HTTP ${response.status}` };
    const parsed = v.safeParse(statusSchema, await response.json());
    return parsed.success
      ? { kind: "status", status: parsed.output }
      : { kind: "silent", reason: "its answer is of another version of this program" };
  } catch (error) {
    if (isSystemError(error, "ENOENT") || isSystemError(error, "ECONNREFUSED")) return { kind: "absent" };
    if (error instanceof DOMException && error.name === "TimeoutError") {
      return { kind: "silent", reason: `it did not answer within ${timeoutMs / 1000} s` };
    }
    const reason = error instanceof SyntaxError ? "its answer is not JSON" : messageOf(error);
    return { kind: "silent", reason };
  }
}
