/**
 * What of a Kubernetes Node object matters here: its name, its version, and the pod networks it was given.
 *
 * The API server is believed no further than its form: a pod network that is none costs that one and is reported, the
 * others are taken. What can be announced of them is for core/announcement.ts to say.
 */
import * as v from "valibot";
import { parseInterfacePrefix, type Prefix } from "../core/prefix.ts";
import { quote, type Problem } from "../core/problem.ts";
import { ClusternetError } from "../errors.ts";

/** A Node as far as it was asked for. */
export interface NodeObject {
  readonly name: string;
  readonly resourceVersion: string;
  /** As written, in the order written; `podCIDR` when `podCIDRs` is empty. */
  readonly podCidrs: readonly string[];
}

/** No node can have more: a Curator takes as many prefixes of one, and Kubernetes itself gives two. */
const maxPodCidrs = 1_024;

const metadataSchema = v.object({
  name: v.optional(v.string(), ""),
  resourceVersion: v.optional(v.string(), ""),
});
const nodeSchema = v.object({
  metadata: metadataSchema,
  spec: v.nullish(
    v.object({
      podCIDR: v.nullish(v.string()),
      // What is in it is looked at one by one.
      podCIDRs: v.nullish(v.array(v.unknown())),
    }),
  ),
});
const listSchema = v.object({
  kind: v.literal("NodeList"),
  metadata: metadataSchema,
  items: v.nullish(v.array(nodeSchema)),
});
const eventSchema = v.object({ type: v.string(), object: v.unknown() });
const bookmarkSchema = v.object({ metadata: metadataSchema });
const statusSchema = v.object({
  code: v.nullish(v.number()),
  reason: v.nullish(v.string()),
  message: v.nullish(v.string()),
});

/** An answer of the API that says what went wrong. */
export interface ApiStatus {
  readonly code: number;
  readonly reason: string;
  readonly message: string;
}

/** One line of a watch. */
export type WatchEvent =
  | { readonly kind: "changed" | "deleted"; readonly node: NodeObject }
  /** Nothing happened up to this version. */
  | { readonly kind: "bookmark"; readonly resourceVersion: string }
  | { readonly kind: "error"; readonly status: ApiStatus }
  /** Of a kind that this version does not know. */
  | { readonly kind: "unknown" };

/** A list of nodes. Throws ClusternetError with the reason alone. */
export function decodeNodeList(text: string): {
  readonly resourceVersion: string;
  readonly nodes: readonly NodeObject[];
} {
  const result = v.safeParse(listSchema, parseJson(text), { abortEarly: true });
  if (!result.success) throw wrong("a NodeList", result.issues[0]);
  const { metadata, items } = result.output;
  if (metadata.resourceVersion === "")
    throw new ClusternetError("it has no resourceVersion, expected a NodeList");
  return { resourceVersion: metadata.resourceVersion, nodes: (items ?? []).map(nodeOf) };
}

/** A line of a watch. Throws ClusternetError with the reason alone. */
export function decodeWatchEvent(line: string): WatchEvent {
  const result = v.safeParse(eventSchema, parseJson(line), { abortEarly: true });
  if (!result.success) throw wrong("a watch event", result.issues[0]);
  const { type, object } = result.output;
  switch (type) {
    case "ADDED":
    case "MODIFIED":
    case "DELETED": {
      const node = v.safeParse(nodeSchema, object, { abortEarly: true });
      if (!node.success) throw wrong("a Node", node.issues[0]);
      return { kind: type === "DELETED" ? "deleted" : "changed", node: nodeOf(node.output) };
    }
    case "BOOKMARK": {
      const bookmark = v.safeParse(bookmarkSchema, object, { abortEarly: true });
      if (!bookmark.success) throw wrong("a bookmark", bookmark.issues[0]);
      return { kind: "bookmark", resourceVersion: bookmark.output.metadata.resourceVersion };
    }
    case "ERROR":
      return { kind: "error", status: decodeStatus(object) };
    default:
      return { kind: "unknown" };
  }
}

/** A Status object, as far as it is one; never throws, since it is an error that it tells of. */
export function decodeStatus(object: unknown): ApiStatus {
  const result = v.safeParse(statusSchema, object);
  const { code, reason, message } = result.success ? result.output : {};
  return { code: code ?? 0, reason: reason ?? "", message: message ?? "" };
}

/** The pod networks of a Node, and one problem for each text that is none. */
export function decodePodCidrs({ name, podCidrs }: Pick<NodeObject, "name" | "podCidrs">): {
  readonly prefixes: readonly Prefix[];
  readonly problems: readonly Problem[];
} {
  const prefixes = new Map<string, Prefix>();
  const problems: Problem[] = [];
  for (const text of new Set(podCidrs.slice(0, maxPodCidrs))) {
    try {
      const prefix = parseInterfacePrefix(text);
      prefixes.set(prefix.text, prefix);
    } catch (error) {
      if (!(error instanceof ClusternetError)) throw error;
      const reason = error.message.replace(/^Cannot parse prefix /, "");
      problems.push({
        kind: "prefix-malformed",
        message: `Cannot use pod network of Kubernetes Node ${quote(name)}: ${reason}`,
      });
    }
  }
  if (podCidrs.length > maxPodCidrs) {
    problems.push({
      kind: "source-failed",
      message: `Cannot use all pod networks of Kubernetes Node ${quote(name)}: it has ${podCidrs.length}, of which the first ${maxPodCidrs} are taken`,
    });
  }
  return { prefixes: [...prefixes.values()], problems };
}

function nodeOf({ metadata, spec }: v.InferOutput<typeof nodeSchema>): NodeObject {
  const all = (spec?.podCIDRs ?? []).map((each) => (typeof each === "string" ? each : JSON.stringify(each)));
  const one = spec?.podCIDR ?? "";
  return { ...metadata, podCidrs: all.length > 0 || one === "" ? all : [one] };
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new ClusternetError("it is not JSON");
  }
}

function wrong(what: string, issue: v.BaseIssue<unknown>): ClusternetError {
  const field = v.getDotPath(issue);
  return new ClusternetError(
    field === null ? `it is not ${what}` : `field ${quote(field)} is missing or wrong, expected ${what}`,
  );
}
