/**
 * Problems: what cannot be used or done, as data.
 *
 * A problem lasts. It is logged when it begins and when it ends and stands in the status meanwhile
 * (src/problem-log.ts keeps that book). `message` is made for people and never holds a secret; text that
 * came from another node is quoted with `quote`, which escapes and cuts it.
 */
import type { NodeId } from "./node.ts";

export type ProblemKind =
  | "node-id"
  | "key-invalid"
  | "key-own"
  | "key-taken"
  | "address-invalid"
  | "address-own"
  | "address-missing"
  | "prefix-malformed"
  | "prefix-outside"
  | "prefix-taken"
  | "prefix-too-wide"
  | "picture-without-self"
  | "picture-shrunk"
  | "curator-unreachable"
  | "curator-untrusted"
  | "announce-refused"
  | "announce-contested"
  | "apply-failed"
  | "file-unwritable"
  | "interface-foreign"
  | "port-in-use"
  | "route-foreign"
  | "mtu-too-small"
  | "event-too-large"
  | "key-mode"
  | "directory-mode"
  | "source-failed";

export interface Problem {
  readonly kind: ProblemKind;
  /** The other node's ID, this node's own for its announcement; absent for the host and the Curator. */
  readonly nodeId?: NodeId;
  readonly message: string;
  /** True: by the Curator's word this node is none of the cluster's any more. */
  readonly isRemoval?: boolean;
}

/** Longest piece of foreign text that a message shows unless it says otherwise, in characters. */
const shownCharacters = 80;

/**
 * Foreign text, in double quotes, safe for a terminal and a log line: everything but printable ASCII is
 * written as an escape, and what is longer than `limit` characters is cut with its length given.
 */
export function quote(text: string, limit = shownCharacters): string {
  const shown = text
    .slice(0, limit)
    .replace(/["\\]|[^\x20-\x7e]/gu, (character) =>
      character === '"' || character === "\\"
        ? `\\${character}`
        : `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`,
    );
  return text.length > limit ? `"${shown}…" (${text.length} characters)` : `"${shown}"`;
}

/** A path of this host, as `quote` writes it, and whole: cut it would name nothing. 1,000 characters are no path of ours. */
export function quotePath(path: string): string {
  return quote(path, 1_000);
}
