/**
 * Brings an announcement to a Curator that may refuse all of it for some of its prefixes: announces what it takes, and
 * reports each prefix that it does not (C2). What to try is decided by core/negotiation.ts.
 *
 * What this node is known by must be known first, since a narrower announcement replaces the one that the Curator
 * holds: without a picture only all that is wanted is tried. What is refused is tried again when something else is
 * wanted, at another Curator, when the Curator knows this node by another address, and now and then.
 */
import { Backoff, refusedPrefixBackoff, type Clock } from "./async.ts";
import type { Announcement } from "./core/announcement.ts";
import {
  foldRefused,
  foldTaken,
  nextTry,
  outcomeOf,
  refusedByRule,
  startNegotiation,
  triesOfChange,
  triesOfRetry,
  type Negotiation,
  type RefusedPrefix,
} from "./core/negotiation.ts";
import type { Node, NodeId } from "./core/node.ts";
import { decodePrefix, hostPrefix, type Address, type Prefix } from "./core/prefix.ts";
import type { Problem } from "./core/problem.ts";
import type { CuratorConnection } from "./curator/connection.ts";
import { CuratorError } from "./errors.ts";

/** gRPC status INVALID_ARGUMENT: key or some prefix is not to the Curator's liking (C2). */
const invalidArgument = 3;
/** So long a picture is waited for before a refusal is taken as one of everything. */
const patienceMs = 10_000;
/** What is refused is tried again after this time and a backoff. */
const refusedPauseMs = 30_000;

/** What to announce, and where. */
export interface AnnounceRequest {
  readonly connection: CuratorConnection;
  readonly announcement: Announcement;
  readonly externalAddress: Address | undefined;
  /** This node as the Curator shows it. */
  readonly shown: Node | undefined;
  /** The Curator has shown this node, or all that it knows. */
  readonly isShown: boolean;
  /** Whether this is still what is wanted: asked after each answer. */
  readonly isCurrent: () => boolean;
}

/** What a Curator has taken. */
interface Accepted {
  /** Of the announcement that was wanted. */
  readonly key: string;
  readonly announcement: Announcement;
  readonly connection: CuratorConnection;
}

/** An announcement that was refused as a whole while nothing was known of what the Curator holds. */
interface Waiting {
  readonly key: string;
  readonly connection: CuratorConnection;
  readonly sinceMs: number;
  /** The refusal, when it has not been thrown yet. */
  readonly refusal: CuratorError | undefined;
}

export class Announcer {
  readonly #self: NodeId;
  readonly #clock: Clock;
  readonly #backoff: Backoff;
  #accepted: Accepted | undefined;
  #refused: readonly RefusedPrefix[] = [];
  /** The Curator knew this node by its address when that was tried. */
  #triedAsShown = false;
  /** As the last try that was taken: what the Curator holds as far as this program knows. */
  #held: readonly Prefix[] | undefined;
  #waiting: Waiting | undefined;
  /** The announcement that has had its tries. */
  #negotiated: string | undefined;
  #retryAtMs = Infinity;

  constructor(self: NodeId, clock: Clock) {
    this.#self = self;
    this.#clock = clock;
    this.#backoff = new Backoff(refusedPrefixBackoff, clock);
  }

  /** What the Curator has taken of what was wanted last; undefined before that. */
  get accepted(): Announcement | undefined {
    return this.#accepted?.announcement;
  }

  /** Whether the Curator has taken all of this that it will take. */
  isSettled(announcement: Announcement): boolean {
    return this.#accepted?.key === keyOf(announcement);
  }

  /** Whether what is refused is worth another try. */
  isRetryDue({ connection, shown, isShown, externalAddress }: AnnounceRequest): boolean {
    const accepted = this.#accepted;
    if (accepted === undefined || this.#refused.length === 0 || !isShown) return false;
    // The Curator takes this node's address when it is that of its status, which others may report.
    const host = externalAddress === undefined ? undefined : hostPrefix(externalAddress).text;
    const isKnownNow =
      shown !== undefined &&
      shown.externalAddress === externalAddress?.text &&
      this.#refused.some(({ prefix }) => prefix.text === host) &&
      !this.#triedAsShown;
    return accepted.connection !== connection || isKnownNow || this.#clock.nowMs() >= this.#retryAtMs;
  }

  /** When there will be something to do without any change: by the clock's `nowMs`, Infinity for never. */
  get wakeAtMs(): number {
    const { refusal, sinceMs = Infinity } = this.#waiting ?? {};
    const times = [this.#retryAtMs, refusal === undefined ? Infinity : sinceMs + patienceMs];
    return Math.min(...times.filter((ms) => ms > this.#clock.nowMs()));
  }

  /** `announce-refused` for each prefix that the Curator does not take. */
  get problems(): readonly Problem[] {
    return this.#refused.map(({ prefix, certain, words }) => ({
      kind: "announce-refused",
      nodeId: this.#self,
      message: certain
        ? `Cannot announce prefix ${prefix.text}: the Curator refuses it, the others are announced: ${words}`
        : `Cannot announce prefix ${prefix.text}: the Curator refuses it or another one, tried again later: ${words}`,
    }));
  }

  /**
   * Announces as much as the Curator takes, in a few tries at most. Returns "taken" when that is settled, "waiting" when
   * it goes on later (`wakeAtMs`, another picture, something else that is wanted). Throws CuratorError when nothing of
   * it is taken.
   */
  async announce(request: AnnounceRequest, signal: AbortSignal): Promise<"taken" | "waiting"> {
    const { announcement, connection } = request;
    const { publicKey, prefixes } = announcement;
    const key = keyOf(announcement);
    if (this.#waiting?.key !== key || this.#waiting.connection !== connection) this.#waiting = undefined;
    let refusal = this.#waiting?.refusal;
    let state = this.#start(request, key);
    if (refusal !== undefined) state = foldRefused(state, prefixes, refusal.details);
    for (let tried = nextTry(state); tried !== undefined; tried = nextTry(state)) {
      if (refusal !== undefined && !request.isShown) return this.#wait({ key, connection, refusal });
      try {
        await connection.announce({ publicKey, prefixes: tried }, signal);
        this.#held = tried;
        // It has replaced what was accepted before.
        if (this.#accepted?.key !== key) this.#accepted = undefined;
        state = foldTaken(state, tried);
      } catch (error) {
        if (!(error instanceof CuratorError) || error.code !== invalidArgument) throw error;
        refusal = error;
        state = foldRefused(state, tried, error.details);
      }
      if (!request.isCurrent()) return "waiting";
    }
    this.#negotiated = key;
    this.#waiting = undefined;
    const outcome = outcomeOf(state);
    if (outcome.kind === "refused") throw refusal ?? new Error("a search without a refusal takes something");
    const { prefixes: taken, refused } = outcome;
    if (this.#accepted?.key !== key || this.#refused.length !== refused.length) this.#backoff.reset();
    this.#retryAtMs =
      refused.length === 0 ? Infinity : this.#clock.nowMs() + refusedPauseMs + this.#backoff.next();
    this.#accepted = { key, announcement: { publicKey, prefixes: taken }, connection };
    this.#triedAsShown = request.shown?.externalAddress === request.externalAddress?.text;
    this.#refused = refused;
    return "taken";
  }

  #start({ announcement, externalAddress, shown }: AnnounceRequest, key: string): Negotiation {
    const { prefixes } = announcement;
    // Under whatever key: a new key takes no prefix from this node, and must not withdraw one either.
    const ofPicture = shown?.prefixes.map(canonical) ?? [];
    const ofOwn = this.#held?.map(({ text }) => text) ?? [];
    return startNegotiation({
      wanted: prefixes,
      held: [...ofPicture, ...ofOwn],
      doubted: refusedByRule(prefixes, {
        externalAddress,
        shown: shown?.externalAddress === "" ? undefined : shown?.externalAddress,
      }),
      refusedBefore: this.#refused,
      tries: this.#negotiated === key ? triesOfRetry : triesOfChange,
    });
  }

  /** For a picture, as long as that may take: once for an announcement at a Curator. */
  #wait(now: Omit<Waiting, "sinceMs"> & { readonly refusal: CuratorError }): "waiting" {
    const sinceMs = this.#waiting?.sinceMs ?? this.#clock.nowMs();
    const isOver = this.#clock.nowMs() >= sinceMs + patienceMs;
    this.#waiting = { ...now, sinceMs, refusal: isOver ? undefined : now.refusal };
    if (isOver) throw now.refusal;
    return "waiting";
  }
}

function keyOf({ publicKey, prefixes }: Announcement): string {
  return [publicKey, ...prefixes.map((each) => each.text)].join(" ");
}

function canonical(text: string): string {
  const prefix = decodePrefix(text);
  return "reason" in prefix ? text : prefix.text;
}
