/**
 * pull: from the Curator's events to the interface.
 *
 * One loop compares and applies; everything else only rings its bell: an event of a stream, a change of what this
 * node itself claims, a hint of the kernel, the resync, a try again after a failure. So what comes while it
 * applies is merged, and whatever could not be done is done at the next turn, by then perhaps as something newer.
 *
 * Order at each turn: the file first and whole, then the host (C4.9); what is to be done on the host is found out while
 * the disk is busy. A file that cannot be written does not hold the mesh back (C4.10).
 */
import { Value, giveWay, type Clock, type Watched } from "./async.ts";
import { CurrentRules } from "./build-rules.ts";
import type { LearnedCurator } from "./core/curators.ts";
import type { SeenHost, WantedHost } from "./core/host-plan.ts";
import type { PrivateKey } from "./core/key.ts";
import type { Mesh } from "./core/mesh.ts";
import { holdMs, type NodeEvent } from "./core/node-set.ts";
import type { Node } from "./core/node.ts";
import type { Prefix } from "./core/prefix.ts";
import type { Problem } from "./core/problem.ts";
import { WgConfigText } from "./core/wg-config.ts";
import type { CuratorFollower, StreamEvent } from "./curator/follower.ts";
import { describeInLine } from "./errors.ts";
import type { FileStamp, Kept } from "./host/files.ts";
import type { ApplyResult, Host } from "./host/host.ts";
import type { Logger } from "./log.ts";
import type { Own } from "./own.ts";
import { Pace } from "./pace.ts";
import type { ProblemLog } from "./problem-log.ts";
import { PullLog } from "./pull-log.ts";
import type { BuildRules, Tracker } from "./tracker.ts";

/** After signs of lost tombstones the stream is opened anew within this time, so that not all agents do it at once (C2). */
const suspicionMs = 60_000;
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
  /** There is a file that cannot be used: it is left alone until a picture is believed (C4.11). */
  readonly keepFile?: boolean;
  /** This host as it has just been read; absent: it is read again. */
  readonly seen?: SeenHost;
}

/** The file of the mesh, as pull needs it (host/mesh-file.ts). */
export interface MeshWriter {
  /**
   * Makes the file hold these pieces of a text, where it does not already. Throws ClusternetError. `onFlush` is called when
   * there is nothing left to do but to wait for the disk.
   */
  write(pieces: readonly Uint8Array[], onFlush: () => void): Promise<Kept>;
}

export interface PullParts {
  readonly tracker: Tracker;
  readonly curator: CuratorFollower;
  /** The streams of `curator`, when they are followed already. */
  readonly events?: AsyncIterable<StreamEvent>;
  readonly host: Host;
  readonly file: MeshWriter;
  readonly own: Watched<Own>;
  readonly problems: ProblemLog;
  readonly log: Logger;
  readonly clock: Clock;
  /** Called in the instant before the host is read for a resync: who also looks at it then costs no program more. */
  readonly onResync?: () => void;
}

/** What the status tells of the mesh. */
export interface PullState {
  readonly mesh: Mesh;
  /** Where the mesh comes from; absent: nothing was applied yet. */
  readonly source?: "curator" | "file";
  readonly sourceAt?: Date;
  /** A mesh from the file, a full picture or a Curator that was heard out has been applied, and nothing is in its way. */
  readonly applied: boolean;
  /** The host has been compared with a mesh once: before, other nodes would knock at an interface that is not there. */
  readonly compared: boolean;
  /** This very mesh is on the host, but for what is left alone. */
  readonly holds: boolean;
  /** The mesh is made of all that the Curator knows. */
  readonly heardOut: boolean;
  readonly seen?: SeenHost;
  /** Number of the stream that decides; 0 before the first. */
  readonly stream: number;
  /** This node as the Curator shows it, and its NodeStatus as last watched. */
  readonly selfNode?: Node;
  readonly selfStatus?: Uint8Array;
  /** Curators that the cluster names; the same array while they are the same. */
  readonly curators: readonly LearnedCurator[];
}

/** Problems that keep the whole interface from working. */
const blocking: ReadonlySet<Problem["kind"]> = new Set(["port-in-use", "interface-foreign"]);

/** Nothing has been heard or applied yet. */
export const initialPullState: PullState = {
  mesh: { peers: [] },
  applied: false,
  compared: false,
  holds: false,
  heardOut: false,
  stream: 0,
  curators: [],
};

const nothing: NodeEvent = { nodes: [], tombstones: [], lastBacklogged: false };

export class Pull {
  readonly state = new Value<PullState>(initialPullState);
  readonly #settings: PullSettings;
  readonly #parts: PullParts;
  readonly #pace: Pace;
  readonly #rules: CurrentRules;
  readonly #told: PullLog;
  readonly #configText: WgConfigText;
  #rendered: { readonly mesh: Mesh; readonly pieces: readonly Uint8Array[] } | undefined;
  #seen: SeenHost | undefined;
  /** Problems of the last turn that saw the host. */
  #found: readonly Problem[] = [];
  #lastEventAt: Date | undefined;
  #heldAsked: number | undefined;
  #everApplied = false;
  /** The last write of the file failed. */
  #isFileBehind = false;

  constructor(settings: PullSettings, parts: PullParts) {
    this.#settings = settings;
    this.#parts = parts;
    const { clusterNets, listenPort, keepaliveSeconds, privateKey, resyncMs } = settings;
    this.#pace = new Pace(resyncMs, parts.clock);
    this.#rules = new CurrentRules({ clusterNets, ownPublicKey: privateKey.publicKey });
    this.#told = new PullLog(parts.log, parts.clock);
    const keepalive = keepaliveSeconds === undefined ? {} : { keepaliveSeconds };
    this.#configText = new WgConfigText({ listenPort, ...keepalive }, privateKey);
  }

  /** Until `signal` aborts. Never throws for what the Curator or the host does. */
  async run(signal: AbortSignal): Promise<void> {
    const { fileTime, seen } = this.#settings;
    this.#pace.begin();
    if (seen !== undefined) {
      this.#seen = seen;
      this.#pace.noteResync();
    } else {
      await this.look(signal).catch((error: unknown) => {
        this.#parts.log.warn("Cannot read this host yet", { error: describeInLine(error) });
      });
    }
    if (fileTime !== undefined) this.#told.tellFile(this.mesh, fileTime);
    // The Curator is followed at once: a host that hangs must not keep it waiting.
    const following = this.#follow(signal);
    // What it has said while this host was read makes one mesh with the last file, not a second one.
    if (this.#parts.events !== undefined) await giveWay();
    const { tracker } = this.#parts;
    const turning = this.#pace.run(
      {
        turn: () => this.#turn(signal),
        prepare: () => tracker.prepare(this.#currentRules()),
        dueMs: () => tracker.settleAtMs,
      },
      signal,
    );
    await Promise.all([following, this.#watchOwn(signal), turning]);
    // The disk may take again what it refused before: a start with no Curator has nothing else.
    if (this.#isFileBehind) {
      const { failure } = await this.#writeFile(this.wanted().file);
      if (failure !== undefined) {
        this.#parts.log.warn(`${failure}. A start without a Curator goes on from an older mesh`);
      }
    }
  }

  /** Reads this host: its addresses decide about other nodes' addresses (C4.6), so it comes before the first mesh. */
  async look(signal: AbortSignal): Promise<void> {
    this.#seen = await this.#parts.host.read(signal);
  }

  /**
   * The newest mesh, whether or not it is applied: who is behind a peer of the interface. To ask for it decides nothing,
   * also in the middle of a burst.
   */
  get mesh(): Mesh {
    return this.#parts.tracker.prepare(this.#currentRules()).mesh;
  }

  /** The kernel told of a change that may concern us: the host is read and compared at once. */
  hint(): void {
    this.#parts.host.invalidate();
    this.#pace.noteHint();
  }

  /** When the loop last turned, by the clock's `nowMs`. */
  get lastTurnMs(): number {
    return this.#pace.lastTurnMs;
  }

  /** The mesh and the host as wanted by all that is known now. */
  wanted(): {
    readonly wanted: WantedHost;
    readonly problems: readonly Problem[];
    readonly file: readonly Uint8Array[];
  } {
    const { interfaceName, privateKey, listenPort, clusterNets, keepaliveSeconds } = this.#settings;
    const own = this.#parts.own.get();
    const { mesh, problems, exact } = this.#parts.tracker.build(this.#currentRules());
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
      file: this.#render(mesh),
    };
  }

  /** The file, rendered once for a mesh. */
  #render(mesh: Mesh): readonly Uint8Array[] {
    if (this.#rendered?.mesh !== mesh) this.#rendered = { mesh, pieces: this.#configText.render(mesh) };
    return this.#rendered.pieces;
  }

  async #follow(signal: AbortSignal): Promise<void> {
    const { tracker, curator, clock } = this.#parts;
    for await (const event of this.#parts.events ?? curator.follow(signal)) {
      const wasHeardOut = tracker.heardOut;
      if (tracker.fold(event, clock.nowMs())) this.#suspect();
      if (event.kind === "event") this.#lastEventAt = clock.wallTime();
      // A turn that waits for its programs leaves time to make all of it, which the next one then finds made.
      if (!wasHeardOut && tracker.heardOut) this.wanted();
      this.#askAgain();
      const { nodes, tombstones } = event.kind === "event" ? event.event : nothing;
      this.#pace.noteChanges(nodes.length + tombstones.length);
    }
  }

  /** Deletions may have been lost: the picture of another stream lacks those nodes. */
  #suspect(): void {
    const { curator, clock, log } = this.#parts;
    const { address } = curator.state.get();
    log.info(
      "The Curator sends its nodes again: deletions may have been lost, so the stream is opened anew",
      address === undefined ? {} : { curator: address },
    );
    curator.reopen(clock.random() * suspicionMs);
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
    const { own } = this.#parts;
    // The first turn begins with what this node claims now, and needs no second one for it.
    let last = own.get();
    for await (const next of own.watch(signal)) {
      if (next !== last) this.#pace.poke();
      last = next;
    }
  }

  async #turn(signal: AbortSignal): Promise<void> {
    const { clock, host, log, tracker, problems } = this.#parts;
    const isResync = this.#pace.isResyncDue;
    if (isResync) {
      this.#pace.noteResync();
      host.invalidate();
    }
    tracker.settle(clock.nowMs());
    const { wanted, problems: meshProblems, file: pieces } = this.wanted();
    // Taken together with the mesh: more may be heard while this one is applied.
    const heard = this.#heard();
    const { isHeld } = tracker;
    problems.replace("mesh", meshProblems);
    const flush = Promise.withResolvers<void>();
    const writing = this.#writeFile(pieces, flush.resolve).finally(flush.resolve);
    const stamp = writing.then((file) => file.stamp);
    // A plan that is begun sooner keeps the write from going on.
    await flush.promise;
    if (isResync) this.#parts.onResync?.();
    const result = await host.apply(wanted, signal, stamp);
    const { failure } = await writing;
    // What was cut short because the agent stops is nobody's problem.
    if (signal.aborted) return;
    const hostProblems = this.#judge(result);
    problems.replace("host", hostProblems);
    if (result.done.length > 0) {
      log.info("Applied the mesh", { peers: wanted.peers.length, steps: result.done.length });
    }
    const holds = result.complete && !hostProblems.some(({ kind }) => blocking.has(kind));
    if (holds) {
      // Before its peers, of which a log that cannot keep up may lose some.
      if (!isHeld && heard.heardOut) this.#told.tellInStep(heard.stream, wanted.peers.length);
      this.#told.tellChanges({ peers: wanted.peers });
    }
    this.#pace.noteOutcome(failure === undefined && result.complete);
    this.#publish({ peers: wanted.peers }, heard, holds, hostProblems);
    // Addresses that came or went on this host change what others may claim: one more turn sees them.
    if (this.#rules.haveChanged(this.#parts.own.get(), this.#seen?.addresses)) this.#pace.poke();
  }

  /** Problems of the host. One that could not be looked at is as it was, as far as anybody knows. */
  #judge({ seen, problems }: ApplyResult): readonly Problem[] {
    if (seen === undefined) return [...this.#found, ...problems];
    this.#seen = seen;
    this.#found = problems;
    return problems;
  }

  /** What the tracker has heard, for the status and for push. */
  #heard() {
    const { tracker } = this.#parts;
    return {
      heardOut: tracker.heardOut,
      stream: tracker.stream,
      curators: tracker.curators(this.#settings.clusterNets),
      ...(tracker.selfNode === undefined ? {} : { selfNode: tracker.selfNode }),
      ...(tracker.selfStatus === undefined ? {} : { selfStatus: tracker.selfStatus }),
    };
  }

  /** What the file is known by if it holds this, or why it could not be written. Never throws. */
  async #writeFile(
    pieces: readonly Uint8Array[],
    onFlush: () => void = () => {},
  ): Promise<{ readonly stamp?: FileStamp; readonly failure?: string }> {
    const { file, problems, tracker } = this.#parts;
    if (this.#settings.keepFile === true && !tracker.believed) return {};
    try {
      const { stamp, isNew } = await file.write(pieces, onFlush);
      if (isNew) problems.replace("last-file", []);
      problems.replace("file", []);
      this.#isFileBehind = false;
      return { stamp };
    } catch (error) {
      const failure = describeInLine(error);
      problems.replace("file", [{ kind: "file-unwritable", message: failure }]);
      this.#isFileBehind = true;
      return { failure };
    }
  }

  #publish(
    mesh: Mesh,
    heard: Pick<PullState, "heardOut" | "stream" | "curators" | "selfNode" | "selfStatus">,
    holds: boolean,
    hostProblems: readonly Problem[],
  ): void {
    const fromFile = this.#settings.fileTime !== undefined;
    if (holds && (fromFile || heard.heardOut)) this.#everApplied = true;
    const before = this.state.get();
    // Once a Curator has been heard out, its picture is what is applied, also while the next stream's backlog comes.
    const isCurators = before.source === "curator" || heard.heardOut;
    const source = isCurators ? "curator" : fromFile ? "file" : undefined;
    const sourceAt = source === "curator" ? this.#lastEventAt : this.#settings.fileTime;
    this.state.set({
      ...heard,
      mesh,
      compared: true,
      holds,
      ...(source === undefined ? {} : { source }),
      ...(source === undefined || sourceAt === undefined ? {} : { sourceAt }),
      applied: this.#everApplied && !hostProblems.some(({ kind }) => blocking.has(kind)),
      ...(this.#seen === undefined ? {} : { seen: this.#seen }),
    });
  }

  #currentRules(): BuildRules {
    return this.#rules.get(this.#parts.own.get(), this.#seen?.addresses);
  }
}
