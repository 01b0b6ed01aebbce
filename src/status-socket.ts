/**
 * The socket of a running agent: HTTP on `<data-dir>/<interface>.sock`, and the client that asks it.
 */
import * as v from "valibot";
import { askPrivateSocket, servePrivateSocket, type PrivateServer } from "./host/private-socket.ts";
import { type Status, statusSchema } from "./status.ts";

/** What the agent answers with. */
export interface StatusHandlers {
  status(): Status | Promise<Status>;
  /** What hangs, in words; empty: every loop has turned within the last 60 s. */
  unhealthy(): readonly string[];
  /** What is missing, in words; empty: a mesh is applied. */
  notReady(): readonly string[];
  /** What is to be known although it is ready, in words. */
  remarks(): readonly string[];
}

/** Answers one GET of `/status`, `/healthz` or `/readyz`. */
async function answerStatusRequest(request: Request, handlers: StatusHandlers): Promise<Response> {
  if (request.method !== "GET") return new Response("expected GET\n", { status: 405 });
  const { pathname } = new URL(request.url);
  if (pathname === "/status") return Response.json(await handlers.status());
  if (pathname === "/healthz") return verdict(handlers.unhealthy());
  if (pathname === "/readyz") return verdict(handlers.notReady(), handlers.remarks());
  return new Response("expected /status, /healthz or /readyz\n", { status: 404 });
}

function verdict(reasons: readonly string[], remarks: readonly string[] = []): Response {
  const [status, lines] = reasons.length === 0 ? [200, ["ok", ...remarks]] : [503, reasons];
  return new Response(lines.map((line) => `${line}\n`).join(""), { status });
}

/** Serves on the socket. Throws ClusternetError when it cannot be bound. */
export function serveStatus(path: string, handlers: StatusHandlers): PrivateServer {
  return servePrivateSocket(path, (request) => answerStatusRequest(request, handlers));
}

export type FetchedStatus =
  | { readonly kind: "status"; readonly status: Status }
  /** No agent listens there. */
  | { readonly kind: "absent" }
  /** Somebody holds the socket and gives no usable answer. */
  | {
      readonly kind: "silent";
      readonly reason: string;
      /** It is this program that may not ask, so whether an agent listens there is not known. */
      readonly forbidden: boolean;
    };

/** Asks the agent behind the socket, for at most `timeoutMs` in all. Never throws for what the other side does. */
export async function fetchStatus(path: string, timeoutMs: number): Promise<FetchedStatus> {
  const answer = await askPrivateSocket(path, { pathname: "/status", timeoutMs });
  if (answer.kind === "absent") return answer;
  if (answer.kind === "failed") return { ...silent(answer.reason), forbidden: answer.forbidden };
  if (!answer.ok) return silent(`it answered HTTP ${answer.status}`);
  let json: unknown;
  try {
    json = JSON.parse(answer.text);
  } catch {
    // Whatever it is, it is none of ours.
    return silent("its answer is not JSON");
  }
  const parsed = v.safeParse(statusSchema, json);
  return parsed.success
    ? { kind: "status", status: parsed.output }
    : silent("its answer is of another version of this program");
}

function silent(reason: string): FetchedStatus & { readonly kind: "silent" } {
  return { kind: "silent", reason, forbidden: false };
}
