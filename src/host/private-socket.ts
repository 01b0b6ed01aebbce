/**
 * HTTP on a Unix socket that nobody but its owner can open: the door of a running agent, and of a running Curator.
 *
 * Mode 0600 from the first instant. Whoever serves holds the lock of its place before, so a socket file that is there
 * already is a dead process' and is replaced. When the file or its directory vanishes, `ensure` binds anew.
 */
import { lstatSync } from "node:fs";
import { ClusternetError } from "../errors.ts";
import { bindPrivateSocket } from "./files.ts";

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
      if (identityOf(path) === bound.identity) return;
      // First the old one: stopping a server removes the file at its path, whoever made it.
      await bound.server.stop(true);
      bound = bind(path, answer);
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

function bind(path: string, answer: AnswerRequest): Bound {
  try {
    const server = bindPrivateSocket(path, () => Bun.serve({ unix: path, fetch: answer }));
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
