/**
 * HTTP on a Unix socket that nobody but its owner can open: the door of a running agent, and of a running Curator; and
 * the other end of it.
 *
 * Mode 0600 from the first instant. Whoever serves holds the lock of its place before, so a socket file that is there
 * already is a dead process' and is replaced. When the file or its directory vanishes, `ensure` binds anew.
 */
import { quotePath } from "../core/problem.ts";
import {
  ClusternetError,
  isForbidden,
  isSystemError,
  messageOf,
  systemHint,
  systemReason,
} from "../errors.ts";
import { bindPrivateSocket, lstatIfThere } from "./files.ts";

export interface PrivateServer {
  /** Binds the socket again when its file is no longer ours. Throws ClusternetError when that cannot be done. */
  ensure(): Promise<void>;
  /** Ends all connections and removes the socket. */
  stop(): Promise<void>;
}

/** Answers one request. */
export type AnswerRequest = (request: Request) => Promise<Response>;

/** Serves on the socket. Throws ClusternetError when it cannot be bound. */
export function servePrivateSocket(path: string, answer: AnswerRequest): PrivateServer {
  let bound = bind(path, answer);
  return {
    async ensure() {
      if (lookAt(path) === bound.identity) return;
      // First the old one: stopping a server removes the file at its path, whoever made it.
      await bound.server.stop(true);
      bound = bind(path, answer);
    },
    async stop() {
      // Stopping removes the file at the path: not when somebody else has put one there.
      if (isOthers(path, bound)) bound.server.unref();
      else await bound.server.stop(true);
    },
  };
}

function isOthers(path: string, bound: Bound): boolean {
  try {
    const found = identityOf(path);
    return found !== undefined && found !== bound.identity;
  } catch {
    // What cannot be looked at cannot be removed either.
    return false;
  }
}

/** What came of a request. */
export type SocketAnswer =
  | { readonly kind: "answer"; readonly ok: boolean; readonly status: number; readonly text: string }
  /** Nobody listens there. */
  | { readonly kind: "absent" }
  | SocketFailure;

export interface SocketFailure {
  readonly kind: "failed";
  /** What whoever listens did, in words. */
  readonly reason: string;
  /** This program may not open the socket. */
  readonly forbidden: boolean;
}

/** Asks whoever listens on the socket, for at most `timeoutMs` in all. Never throws for what the other side does. */
export async function askPrivateSocket(
  path: string,
  { pathname, timeoutMs, ...init }: RequestInit & { readonly pathname: string; readonly timeoutMs: number },
): Promise<SocketAnswer> {
  try {
    const response = await fetch(`http://clusternet${pathname}`, {
      ...init,
      unix: path,
      signal: AbortSignal.timeout(timeoutMs),
    });
    return { kind: "answer", ok: response.ok, status: response.status, text: await response.text() };
  } catch (error) {
    // Bun's own words ask for a typo in the URL, which nobody has typed.
    const isOneOf = (...codes: readonly string[]): boolean =>
      codes.some((code) => isSystemError(error, code));
    if (isOneOf("ENOENT", "ENOTDIR", "ECONNREFUSED")) return { kind: "absent" };
    if (isForbidden(error)) return failed("permission denied", true);
    if (error instanceof DOMException && error.name === "TimeoutError") {
      return failed(`it did not answer within ${timeoutMs / 1000} s`);
    }
    // The kernel's queue of those who wait to be taken: of a process that was stopped it fills, and never empties.
    if (isOneOf("EAGAIN")) return failed("too many wait for its answer already");
    return failed(isOneOf("ECONNRESET") ? "it closed the connection without an answer" : messageOf(error));
  }
}

function failed(reason: string, forbidden = false): SocketFailure {
  return { kind: "failed", reason, forbidden };
}

interface Bound {
  readonly server: Bun.Server<undefined>;
  readonly identity: string | undefined;
}

function bind(path: string, answer: AnswerRequest): Bound {
  try {
    const server = bindPrivateSocket(path, () => Bun.serve({ unix: path, fetch: answer }));
    return { server, identity: identityOf(path) };
  } catch (error) {
    throw unbound(path, error);
  }
}

function lookAt(path: string): string | undefined {
  try {
    return identityOf(path);
  } catch (error) {
    throw unbound(path, error);
  }
}

function unbound(path: string, error: unknown): ClusternetError {
  if (error instanceof ClusternetError) return error;
  return new ClusternetError(`Cannot listen on socket ${quotePath(path)}: ${systemReason(error)}`, {
    cause: error,
    ...systemHint(error),
  });
}

/** Which file is there; the time is part of it since numbers of inodes are used again, and a changed mode counts. */
function identityOf(path: string): string | undefined {
  const found = lstatIfThere(path);
  return found === undefined ? undefined : `${found.dev} ${found.ino} ${found.ctimeNs}`;
}
