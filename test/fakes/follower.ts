/**
 * A CuratorFollower that yields the stream events it is given, and remembers what it was asked for.
 */
import { Value } from "../../src/async.ts";
import type { NamedCurator } from "../../src/core/curators.ts";
import type { Problem } from "../../src/core/problem.ts";
import type { CuratorConnection } from "../../src/curator/connection.ts";
import type { CuratorFollower, CuratorState, StreamEvent } from "../../src/curator/follower.ts";

export class FakeFollower implements CuratorFollower {
  readonly connection = new Value<CuratorConnection | undefined>(undefined);
  readonly state = new Value<CuratorState>({ state: "none", fullPicture: false });
  readonly problems = new Value<readonly Problem[]>([]);
  /** Milliseconds after which a stream was to be opened anew. */
  readonly reopened: number[] = [];
  /** Curators that it was to try besides. */
  readonly learned: (readonly NamedCurator[])[] = [];
  readonly #events: StreamEvent[];
  readonly #more = new Value(0);

  /** `events`: what comes first. */
  constructor(events: readonly StreamEvent[] = []) {
    this.#events = [...events];
  }

  send(...events: readonly StreamEvent[]): void {
    this.#events.push(...events);
    this.#more.set(0);
  }

  async *follow(signal: AbortSignal): AsyncIterable<StreamEvent> {
    for await (const _more of this.#more.watch(signal)) {
      for (let next; (next = this.#events.shift());) yield next;
    }
  }

  reopen(delayMs: number): void {
    this.reopened.push(delayMs);
  }

  reconnect(): void {}

  learn(curators: readonly NamedCurator[]): void {
    this.learned.push(curators);
  }
}
