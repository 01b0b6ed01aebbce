/**
 * What a caller is refused for, as data: the gRPC status code that agents act on, and words for people.
 */
import { Status } from "nice-grpc-common";
import { quote } from "../core/problem.ts";
import type { NodeCommand } from "../node-command.ts";

/** The codes that this Curator refuses with; what each means to an agent is contract part 2. */
export type RefusalCode =
  | Status.INVALID_ARGUMENT
  | Status.NOT_FOUND
  | Status.PERMISSION_DENIED
  | Status.FAILED_PRECONDITION
  | Status.RESOURCE_EXHAUSTED
  | Status.UNIMPLEMENTED
  | Status.UNAVAILABLE
  | Status.UNAUTHENTICATED;

export interface Refusal {
  readonly code: RefusalCode;
  /** One line. Text of the caller's is quoted in it. */
  readonly message: string;
}

/** The request itself cannot be used. */
export function invalid(message: string): Refusal {
  return { code: Status.INVALID_ARGUMENT, message };
}

/** The caller was taken out of the cluster; agents keep their mesh and go on trying. */
export function removedRefusal(id: string, nodeCommand: NodeCommand): Refusal {
  return {
    code: Status.NOT_FOUND,
    message: `Cannot serve node ${quote(id)}: it was removed; ${nodeCommand("allow", id)} lets it in again`,
  };
}

/** Something that passes by itself: stopping, or a store that cannot be written. */
export function unavailable(message: string): Refusal {
  return { code: Status.UNAVAILABLE, message };
}
