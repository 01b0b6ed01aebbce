/**
 * The door for the operator: HTTP on a Unix socket in the data directory, both ends of it.
 *
 * Who may open the socket file may do everything, so its mode is 0600 from the first instant. IDs go in the body,
 * never in the path: an ID may hold any printable character.
 */
import * as v from "valibot";
import { escapeUnsafe } from "../core/printable.ts";
import { quotePath } from "../core/problem.ts";
import { ClusternetError, exitStatus, SettingsError } from "../errors.ts";
import { socketPath } from "../host/files.ts";
import { describeSilence, findHolderOf } from "../host/holder.ts";
import {
  askPrivateSocket,
  servePrivateSocket,
  type PrivateServer,
  type SocketFailure,
} from "../host/private-socket.ts";
import { curatorNodeId } from "./caller.ts";
import type { MembershipChange, Registry } from "./registry.ts";

const listedNode = v.object({
  id: v.string(),
  state: v.picklist(["up", "removed", "allowed"]),
  externalAddress: v.nullable(v.string()),
  publicKey: v.nullable(v.string()),
  prefixes: v.array(v.string()),
  /** RFC 3339, UTC. */
  lastReportAt: v.nullable(v.string()),
});
/** A line of `node list`. */
export type ListedNode = v.InferOutput<typeof listedNode>;

const outcomes = ["done", "was-so", "unknown-node"] as const;
/** What `node remove` or `node allow` came to. */
export type Outcome = (typeof outcomes)[number];

const listAnswer = v.object({ nodes: v.array(listedNode) });
const changeAnswer = v.object({ outcome: v.picklist(outcomes) });
const failureAnswer = v.object({ error: v.string() });
const changeRequest = v.object({ change: v.picklist(["remove", "allow"]), id: v.string() });
const requestHeader = v.literal("application/json");

/** Of the socket in the data directory. */
const socketName = "curator";
/** One that is stopped never answers. */
const timeoutMs = 10_000;

/** Listens. The caller holds the data directory, so a socket file that is there is left from a crash. Throws SettingsError. */
export function startAdminSocket(dataDirectory: string, registry: Registry): PrivateServer {
  const path = socketPath(dataDirectory, socketName);
  try {
    return servePrivateSocket(path, (request) => answer(request, registry));
  } catch (error) {
    if (!(error instanceof ClusternetError)) throw error;
    const { message, cause, hint } = error;
    throw new SettingsError(message, { cause, ...(hint === undefined ? {} : { hint }) });
  }
}

async function answer(request: Request, registry: Registry): Promise<Response> {
  const { pathname } = new URL(request.url);
  if (pathname !== "/nodes") return failure(404, `Cannot answer: there is no ${pathname}`);
  if (request.method === "GET") return Response.json({ nodes: listNodes(registry) });
  if (request.method !== "POST" || request.headers.get("content-type") !== requestHeader.literal) {
    return failure(400, "Cannot answer: expected GET, or POST of application/json");
  }
  const read = v.safeParse(changeRequest, parseJson(await request.text()));
  if (!read.success) {
    return failure(400, 'Cannot read the request: expected {"change": "remove" or "allow", "id": TEXT}');
  }
  const { change, id: text } = read.output;
  const id = curatorNodeId(text);
  if (typeof id !== "string") return failure(400, id.message);
  const outcome: MembershipChange =
    change === "remove" ? await registry.remove(id) : await registry.allow(id);
  return typeof outcome === "string" ? Response.json({ outcome }) : failure(503, outcome.message);
}

function failure(status: number, error: string): Response {
  return Response.json({ error }, { status });
}

function listNodes(registry: Registry): readonly ListedNode[] {
  const members = registry.nodes.map((node): ListedNode => ({
    id: node.id,
    state: "up",
    externalAddress: node.externalAddress,
    publicKey: node.publicKey === "" ? null : node.publicKey,
    prefixes: [...node.prefixes],
    lastReportAt: new Date(node.reportedAtMs).toISOString(),
  }));
  const { removed, allowed } = registry;
  return [
    ...members,
    ...removed.map((id) => listStranger(id, "removed")),
    ...allowed.map((id) => listStranger(id, "allowed")),
  ];
}

function listStranger(id: string, state: "removed" | "allowed"): ListedNode {
  return { id, state, externalAddress: null, publicKey: null, prefixes: [], lastReportAt: null };
}

/** Members by ID, then removed nodes, then those that were allowed again and have not joined yet. Throws ClusternetError, exit 69 when no Curator runs there. */
export async function readNodes(dataDirectory: string): Promise<readonly ListedNode[]> {
  return (await ask(dataDirectory, listAnswer, { method: "GET" })).nodes;
}

/** Asks for a node to be removed or allowed. Throws as `readNodes`. */
export async function changeMembership(
  dataDirectory: string,
  request: { readonly change: "remove" | "allow"; readonly id: string },
): Promise<Outcome> {
  const answer = await ask(dataDirectory, changeAnswer, {
    method: "POST",
    headers: { "content-type": requestHeader.literal },
    body: JSON.stringify(request),
  });
  return answer.outcome;
}

/** What the Curator answers when all is well. Throws as `readNodes`, and what it refuses with exit 78, what it cannot do now with 75. */
async function ask<T>(
  dataDirectory: string,
  schema: v.GenericSchema<unknown, T>,
  init: RequestInit,
): Promise<T> {
  const path = socketPath(dataDirectory, socketName);
  const found = await askPrivateSocket(path, { pathname: "/nodes", timeoutMs, ...init });
  if (found.kind !== "answer") {
    throw new ClusternetError(
      `Cannot reach the Curator at socket ${quotePath(path)}: ${found.kind === "absent" ? "nobody listens there" : found.reason}`,
      { hint: remedyOf(found, dataDirectory), exit: exitStatus.unavailable },
    );
  }
  const body = parseJson(found.text);
  const answer = v.safeParse(schema, body);
  if (found.ok && answer.success) return answer.output;
  const failed = v.safeParse(failureAnswer, body);
  if (!found.ok && failed.success) {
    const isTemporary = found.status === 503;
    throw new ClusternetError(escapeUnsafe(failed.output.error), {
      ...(isTemporary ? { hint: "The Curator's log says why it cannot, like a full disk" } : {}),
      exit: isTemporary ? exitStatus.temporary : exitStatus.settings,
    });
  }
  throw new ClusternetError(
    `Cannot understand the Curator at socket ${quotePath(path)}: HTTP ${found.status}, and not what is expected of one`,
    {
      hint: "Something else may listen there, or a Curator of another version: start it again as this version",
      exit: exitStatus.unavailable,
    },
  );
}

function remedyOf(found: { readonly kind: "absent" } | SocketFailure, dataDirectory: string): string {
  if (found.kind === "failed" && found.forbidden)
    return "Run this as root, or as the user who runs the Curator";
  const holder = found.kind === "failed" ? findHolderOf(dataDirectory) : undefined;
  return holder === undefined
    ? "Start it with `clusternet curator`, or give with --data-dir the data directory of the one that runs"
    : `It is there, but ${describeSilence(holder)}`;
}

/** Undefined for what is not JSON. */
function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    // No answer of ours, whatever it is; the caller says so.
    return undefined;
  }
}
