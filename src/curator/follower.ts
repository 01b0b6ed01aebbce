/**
 * Keeps a watch stream open whatever happens: chooses the Curator, tries again with backoff and jitter, and opens
 * the stream anew when tombstones may have been lost (C2).
 */
import type { Watched } from "../async.ts";
import type { NodeId } from "../core/node.ts";
import type { Problem } from "../core/problem.ts";
import type { CuratorConnection, DecodedEvent } from "./connection.ts";

export type StreamEvent =
  /** A stream was opened. `replaces`: another one goes on until this one's picture is full. */
  | { readonly kind: "opened"; readonly stream: number; readonly address: string; readonly replaces?: number }
  | { readonly kind: "event"; readonly stream: number; readonly event: DecodedEvent }
  /** No more events of this stream. */
  | { readonly kind: "closed"; readonly stream: number };

/** What the status shows of the Curator. */
export interface CuratorState {
  readonly state: "connected" | "connecting" | "none";
  readonly address?: string;
  readonly since?: Date;
  /** The current stream has brought its full picture. */
  readonly fullPicture: boolean;
  readonly lastEventAt?: Date;
}

export interface CuratorFollower {
  /** The connection whose stream is alive: announcements go there. Undefined while there is none. */
  readonly connection: Watched<CuratorConnection | undefined>;
  readonly state: Watched<CuratorState>;
  /** `curator-unreachable`, `event-too-large`, … while they last. */
  readonly problems: Watched<readonly Problem[]>;
  /** Streams one after the other until `signal` aborts. Never throws. Stream numbers grow and are never used twice. */
  follow(signal: AbortSignal): AsyncIterable<StreamEvent>;
  /** Opens the stream anew beside the running one, after `delayMs` (a picture that is held asks for a second opinion). */
  reopen(delayMs: number): void;
}

export type Connect = (address: string) => CuratorConnection;

export interface FollowerSettings {
  readonly addresses: readonly string[];
  readonly self: NodeId;
  readonly connect: Connect;
}
