/**
 * pull: from the Curator's events to the interface.
 *
 * One loop compares and applies; everything else only rings its bell: an event of a stream, a change of what this
 * node itself claims, a hint of the kernel, the resync, a try again after a failure. So what comes while it
 * applies is merged, and whatever could not be done is done at the next turn, by then perhaps as something newer.
 *
 * Order at each turn: the file first and whole, then the host (C4.9). A file that cannot be written does not hold
 * the mesh back (C4.10).
 */
import { Backoff, Bell, Value, applyBackoff, type Clock, type Watched } from "./async.ts";
import type { NamedCurator } from "./core/curators.ts";
import type { SeenHost, WantedHost } from "./core/host-plan.ts";
import type { Mesh } from "./core/mesh.ts";
import { diffMeshes } from "./core/mesh-changes.ts";
import { holdMs } from "./core/node-set.ts";
import type { Node } from "./core/node.ts";
import type { Prefix } from "./core/prefix.ts";
import type { Problem } from "./core/problem.ts";
import { renderWgConfig } from "./core/wg-config.ts";
import type { PrivateKey } from "./core/key.ts";
import type { CuratorFollower } from "./curator/follower.ts";
import { ClusternetError, describeError, exitStatus, messageOf } from "./errors.ts";
import type { Host } from "./host/host.ts";
import type { Logger } from "./log.ts";
import type { Own } from "./own.ts";
import type { ProblemLog } from "./problem-log.ts";
import type { BuildRules, Tracker } from "./tracker.ts";

/** At most ten applies a second in a lasting flood of changes (C4.9). */
const minApplyIntervalMs = 100;
/** The loop turns at least this often, so that one that hangs can be told from one that rests. */
const pulseMs = 20_000;
/** So many changed peers of one apply are logged singly. */
const loggedSingly = 20;
/** A held picture is looked at again by another stream this long after it was held, and up to a minute more. */
const secondOpinionJitterMs = 60_000;

export interface PullSettings {
  readonly interfaceName: string;
  readonly privateKey: PrivateKey;
  readonly listenPort: number;
  readonly clusterNets: readonly Prefix[];
  readonly keepaliveSeconds?: number;
  readonly resyncMs: number;
  /** When the last file was written, if the mesh starts from it. */
  readonly fileTime?: Date;
}

/** The file of the mesh, as pull needs it (host/mesh-file.ts). */
export interface MeshWriter {
  /** Makes the file hold this text; false: it does already. Throws ClusternetError. */
  write(text: string): Promise<boolean>;
}

export interface PullParts {
  readonly tracker: Tracker;
  readonly curator: CuratorFollower;
  readonly host: Host;
  readonly file: MeshWriter;
  readonly own: Watched<Own>;
  readonly problems: ProblemLog;
  readonly log: Logger;
  readonly clock: Clock;
}

/** What the status tells of the mesh. */
export interface PullState {
  readonly mesh: Mesh;
  /** Where the mesh comes from; absent: nothing was applied yet. */
  readonly source?: "curator" | "file";
  readonly sourceAt?: Date;
  /** A mesh from the file, a full picture or a Curator that was heard out has been applied, and nothing is in its way. */
  readonly applied: boolean;
  /** All that the Curator knows has been heard. */
  readonly heardOut: boolean;
  readonly seen?: SeenHost;
  /** Number of the stream that decides; 0 before the first. */
  readonly stream: number;
  /** This node as the Curator shows it, and its NodeStatus as last watched. */
  readonly selfNode?: Node;
  readonly selfStatus?: Uint8Array;
  /** Curators that the cluster names; the same array while they are the same. */
  readonly curators: readonly NamedCurator[];
}

/** Problems that keep the whole interface from working. */
const blocking: ReadonlySet<Problem["kind"]> = new Set(["port-in-use", "interface-foreign"]);

export class Pull {
  readonly state = new Value<PullState>({
    mesh: { peers: [] },
    applied: false,
    heardOut: false,
    stream: 0,
    curators: [],
  });
  readonly #settings: PullSettings;
  readonly #parts: PullParts;
  readonly #bell = new Bell();
  readonly #backoff: Backoff;
  /** Set while something could not be done: when to try again. */
  #retryAtMs: number | undefined;
  #resyncAtMs = 0;
  #lastApplyMs = -minApplyIntervalMs;
  #seen: SeenHost | undefined;
  #rules: BuildRules | undefined;
  #lastEventAt: Date | undefined;
  #heldAsked: number | undefined;
  #lastTurnMs = 0;
  #everApplied = false;
  /** The mesh that the log knows of. */
  #told: Mesh = { peers: [] };

  constructor(settings: PullSettings, parts: PullParts) {
    this.#settings = settings;
    this.#parts = parts;
    this.#backoff = new Backoff(applyBackoff, parts.clock);
  }

  /** Until `signal` aborts. Never throws for what the Curator or the host does. */
  async run(signal: AbortSignal): Promise<void> {
    // The addresses of this host decide about other nodes' addresses (C4.6), so it is read before the first mesh.
    this.#seen = await this.#parts.host.read().catch((error: unknown) => {
      this.#parts.log.warn("Cannot read this host yet", { error: describeError(error) });
      return undefined;
    });
    const { fileTime } = this.#settings;
    if (fileTime !== undefined) {
      this.#told = { peers: this.wanted().wanted.peers };
      this.#parts.log.info("Starting from the last file", {
        peers: this.#told.peers.length,
        writtenAt: fileTime.toISOString(),
      });
    }
    await this.#turn(signal);
    await Promise.all([this.#follow(signal), this.#watchOwn(signal), this.#loop(signal)]);
  }

  /**
   * Only listens, and applies nothing: until all that the Curator knows has been heard. Throws ClusternetError with
   * exit 75 when `timeoutMs` run out first.
   */
  async hear(timeoutMs: number, signal: AbortSignal): Promise<void> {
    const { tracker, curator, host, clock } = this.#parts;
    this.#seen = await host.read();
    // The mesh of before decides who holds what (C4.5).
    this.wanted();
    const stop = new AbortController();
    const until = AbortSignal.any([signal, stop.signal]);
    const listen = async (): Promise<void> => {
      for await (const event of curator.follow(until)) {
        tracker.fold(event, clock.nowMs());
        if (tracker.heardOut) stop.abort();
      }
    };
    const limit = async (): Promise<void> => {
      const endMs = clock.nowMs() + timeoutMs;
      while (!until.aborted && clock.nowMs() < endMs) {
        await clock.sleep(
          Math.min(endMs, tracker.settleAtMs ?? Infinity, clock.nowMs() + 100) - clock.nowMs(),
          until,
        );
        tracker.settle(clock.nowMs());
        if (tracker.heardOut) break;
      }
      stop.abort();
    };
    await Promise.all([listen(), limit()]);
    if (tracker.heardOut || signal.aborted) return;
    throw new ClusternetError(
      `Cannot see the whole mesh within ${timeoutMs / 1000} s: no full picture has come from a Curator`,
      { exit: exitStatus.temporary },
    );
  }

  /** The kernel told of a change that may concern us: the host is read and compared at once. */
  hint(): void {
    this.#parts.host.invalidate();
    this.#bell.poke();
  }

  /** When the loop last turned, by the clock's `nowMs`. */
  get lastTurnMs(): number {
    return this.#lastTurnMs;
  }

  /** The mesh and the host as wanted by all that is known now. */
  wanted(): { readonly wanted: WantedHost; readonly problems: readonly Problem[]; readonly text: string } {
    const { interfaceName, privateKey, listenPort, clusterNets, keepaliveSeconds } = this.#settings;
    const own = this.#parts.own.get();
    const { mesh, problems, exact } = this.#parts.tracker.build(this.#currentRules(own));
    const keepalive = keepaliveSeconds === undefined ? {} : { keepaliveSeconds };
    return {
      wanted: {
        interfaceName,
        publicKey: privateKey.publicKey,
        listenPort,
        mtu: own.mtu,
        ...keepalive,
        clusterNets,
        peers: mesh.peers,
        loopbackAddresses: own.claim.loopbackAddresses,
        exact,
      },
      problems,
      text: renderWgConfig({ listenPort, mesh, ...keepalive }, privateKey),
    };
  }

  async #follow(signal: AbortSignal): Promise<void> {
    const { tracker, curator, clock } = this.#parts;
    for await (const event of curator.follow(signal)) {
      tracker.fold(event, clock.nowMs());
      if (event.kind === "event") this.#lastEventAt = clock.wallTime();
      this.#askAgain();
      this.#bell.poke();
    }
  }

  /** A picture that is held needs the opinion of another stream (C4.8). */
  #askAgain(): void {
    const { tracker, curator, clock } = this.#parts;
    const held = tracker.heldSinceMs;
    if (held === undefined || held === this.#heldAsked) return;
    this.#heldAsked = held;
    curator.reopen(held + holdMs - clock.nowMs() + clock.random() * secondOpinionJitterMs);
  }

  async #watchOwn(signal: AbortSignal): Promise<void> {
    for await (const _own of this.#parts.own.watch(signal)) this.#bell.poke();
  }

  async #loop(signal: AbortSignal): Promise<void> {
    const { clock, tracker } = this.#parts;
    while (!signal.aborted) {
      this.#lastTurnMs = clock.nowMs();
      const nextMs = Math.min(this.#resyncAtMs, this.#retryAtMs ?? Infinity, tracker.settleAtMs ?? Infinity);
      await this.#bell.wait(Math.min(Math.max(0, nextMs - clock.nowMs()), pulseMs), signal, clock);
      const early = this.#lastApplyMs + minApplyIntervalMs - clock.nowMs();
      if (early > 0) await clock.sleep(early, signal);
      if (!signal.aborted) await this.#turn(signal);
    }
  }

  async #turn(signal: AbortSignal): Promise<void> {
    const { clock, host, log, tracker, problems } = this.#parts;
    this.#lastApplyMs = clock.nowMs();
    if (clock.nowMs() >= this.#resyncAtMs) {
      this.#resyncAtMs = clock.nowMs() + this.#settings.resyncMs;
      host.invalidate();
    }
    tracker.settle(clock.nowMs());
    const { wanted, problems: meshProblems, text } = this.wanted();
    problems.replace("mesh", meshProblems);
    const written = await this.#writeFile(text);
    if (signal.aborted) return;
    const result = await host.apply({ ...wanted, configWritten: written && tracker.complete });
    problems.replace("host", result.problems);
    if (result.seen !== undefined) this.#seen = result.seen;
    if (result.done.length > 0) {
      log.info("Applied the mesh", { peers: wanted.peers.length, steps: result.done.length });
    }
    if (result.complete) this.#tellChanges({ peers: wanted.peers });
    if (written && result.complete) {
      this.#retryAtMs = undefined;
      this.#backoff.reset();
    } else {
      this.#retryAtMs = clock.nowMs() + this.#backoff.next();
    }
    this.#publish({ peers: wanted.peers }, result.complete, result.problems);
    // Addresses that came or went on this host change what others may claim: one more turn sees them.
    if (this.#rules !== this.#currentRules(this.#parts.own.get())) this.#bell.poke();
  }

  /** One line a peer that came, went or changed, when it holds; of many the first ones and a count. */
  #tellChanges(mesh: Mesh): void {
    const { log } = this.#parts;
    const changes = diffMeshes(this.#told, mesh);
    this.#told = mesh;
    for (const { kind, peer } of changes.slice(0, loggedSingly)) {
      log.info(`Peer ${kind}`, {
        node: peer.nodeId,
        publicKey: peer.publicKey,
        address: peer.address?.text,
        prefixes: peer.prefixes.map((each) => each.text).join(" "),
      });
    }
    if (changes.length > loggedSingly)
      log.info("More peers changed", { count: changes.length - loggedSingly });
  }

  /** A file that is not known to say all there is on the interface is written only by a believed picture (C4.11). */
  async #writeFile(text: string): Promise<boolean> {
    const { file, problems, tracker } = this.#parts;
    if (!tracker.complete) return true;
    try {
      await file.write(text);
      problems.replace("file", []);
      return true;
    } catch (error) {
      problems.replace("file", [{ kind: "file-unwritable", message: causesOf(error) }]);
      return false;
    }
  }

  #publish(mesh: Mesh, complete: boolean, hostProblems: readonly Problem[]): void {
    const { tracker } = this.#parts;
    const fromFile = this.#settings.fileTime !== undefined;
    if (complete && (fromFile || tracker.heardOut)) this.#everApplied = true;
    const source = tracker.heardOut ? "curator" : fromFile ? "file" : undefined;
    const before = this.state.get();
    // Once a Curator has been heard out, its picture is what is applied, also while the next stream's backlog comes.
    const kept = before.source === "curator" ? "curator" : source;
    const sourceAt =
      kept === "curator" ? this.#lastEventAt : kept === "file" ? this.#settings.fileTime : undefined;
    this.state.set({
      mesh,
      ...(kept === undefined ? {} : { source: kept }),
      ...(sourceAt === undefined ? {} : { sourceAt }),
      applied: this.#everApplied && !hostProblems.some(({ kind }) => blocking.has(kind)),
      heardOut: tracker.heardOut,
      stream: tracker.stream,
      curators: tracker.curators(this.#settings.clusterNets),
      ...(this.#seen === undefined ? {} : { seen: this.#seen }),
      ...(tracker.selfNode === undefined ? {} : { selfNode: tracker.selfNode }),
      ...(tracker.selfStatus === undefined ? {} : { selfStatus: tracker.selfStatus }),
    });
  }

  /** The rules of judging; the same object while they say the same, so that nothing is judged twice. */
  #currentRules(own: Own): BuildRules {
    const hostAddresses = this.#seen?.addresses ?? new Set<string>();
    const next: BuildRules = {
      clusterNets: this.#settings.clusterNets,
      ownPublicKey: this.#settings.privateKey.publicKey,
      hostAddresses,
      ownPrefixes: own.claim.announcement.prefixes,
    };
    const before = this.#rules;
    const same =
      before !== undefined &&
      before.ownPrefixes === next.ownPrefixes &&
      (before.hostAddresses === hostAddresses ||
        (before.hostAddresses.size === hostAddresses.size && hostAddresses.isSubsetOf(before.hostAddresses)));
    if (same) return before;
    this.#rules = next;
    return next;
  }
}

/** An error and its causes in one line, for a problem's message. */
function causesOf(error: unknown): string {
  const texts: string[] = [];
  for (let each: unknown = error; each !== undefined && texts.length < 4;) {
    texts.push(messageOf(each));
    each = each instanceof Error ? each.cause : undefined;
  }
  return texts.join(": ");
}
