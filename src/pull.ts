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
import { Backoff, Bell, Value, giveWay, applyBackoff, pulseMs, type Clock, type Watched } from "./async.ts";
import type { LearnedCurator } from "./core/curators.ts";
import type { SeenHost, WantedHost } from "./core/host-plan.ts";
import type { Mesh } from "./core/mesh.ts";
import { diffMeshes } from "./core/mesh-changes.ts";
import { holdMs } from "./core/node-set.ts";
import type { Node } from "./core/node.ts";
import { containsAddress, decodeAddress, unusableReason, type Prefix } from "./core/prefix.ts";
import type { Problem } from "./core/problem.ts";
import { WgConfigText } from "./core/wg-config.ts";
import type { PrivateKey } from "./core/key.ts";
import type { CuratorFollower, StreamEvent } from "./curator/follower.ts";
import { ClusternetError, describeError, describeInLine, exitStatus } from "./errors.ts";
import type { FileStamp, Kept } from "./host/files.ts";
import type { Host } from "./host/host.ts";
import type { Logger } from "./log.ts";
import type { Own } from "./own.ts";
import type { ProblemLog } from "./problem-log.ts";
import type { BuildRules, Tracker } from "./tracker.ts";

/** At most ten applies a second in a lasting flood of changes (C4.9). */
const minApplyIntervalMs = 100;
/**
 * In a lasting flood the loop rests twice as long as a turn took, up to this long: a node that changes all the time must
 * not keep the processor of a large mesh's every machine busy.
 */
const maxRestMs = 5_000;
/** A flood lasts when so many turns in a row were asked for before they were due. */
const lastingTurns = 3;
/** More events than this since the last turn are a burst, of which more is on its way. */
const burstEvents = 8;
/** A burst is over when nothing came for this long, and is not waited for longer than that. */
const burstQuietMs = 4;
const burstLimitMs = 100;
/** While something fails a hint is followed no sooner than this after the last turn: C4.12 wants drift mended in 2 s. */
const failingHintMs = 1_500;
/** So many changed peers are logged singly in a minute; of a cluster in which nodes change all the time the rest is counted. */
const loggedSingly = 60;
const loggedWindowMs = 60_000;
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
  /** Makes the file hold these pieces of a text, where it does not already. Throws ClusternetError. */
  write(pieces: readonly Uint8Array[]): Promise<Kept>;
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

const noAddresses: ReadonlySet<string> = new Set();

/** Problems that keep the whole interface from working. */
const blocking: ReadonlySet<Problem["kind"]> = new Set(["port-in-use", "interface-foreign"]);

export class Pull {
  readonly state = new Value<PullState>({
    mesh: { peers: [] },
    applied: false,
    compared: false,
    holds: false,
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
  /** Not before this time, so that a flood is merged. */
  #nextTurnMs = 0;
  /** Turns in a row that were asked for before they were due. */
  #hurriedTurns = 0;
  /** Since the last turn. */
  #events = 0;
  readonly #configText: WgConfigText;
  #rendered: { readonly mesh: Mesh; readonly pieces: readonly Uint8Array[] } | undefined;
  /** Addresses of this host that could be an endpoint, of the reading that they were found in. */
  #endpoints: { readonly of: ReadonlySet<string>; readonly texts: ReadonlySet<string> } | undefined;
  #seen: SeenHost | undefined;
  #rules: BuildRules | undefined;
  #lastEventAt: Date | undefined;
  #heldAsked: number | undefined;
  #lastTurnMs = 0;
  #everApplied = false;
  /** The stream whose whole picture the log says to hold. */
  #toldStream = 0;
  /** The mesh that the log knows of, and how much was told in this minute. */
  #told: Mesh = { peers: [] };
  /** The kernel told of something since the last turn began. */
  #hinted = false;
  #tellingSinceMs = 0;
  #toldSingly = 0;
  #untold = 0;

  constructor(settings: PullSettings, parts: PullParts) {
    this.#settings = settings;
    this.#parts = parts;
    this.#backoff = new Backoff(applyBackoff, parts.clock);
    const { listenPort, keepaliveSeconds, privateKey } = settings;
    const keepalive = keepaliveSeconds === undefined ? {} : { keepaliveSeconds };
    this.#configText = new WgConfigText({ listenPort, ...keepalive }, privateKey);
  }

  /** Until `signal` aborts. Never throws for what the Curator or the host does. */
  async run(signal: AbortSignal): Promise<void> {
    this.#lastTurnMs = this.#parts.clock.nowMs();
    // The addresses of this host decide about other nodes' addresses (C4.6), so it is read before the first mesh.
    const { fileTime, seen, resyncMs } = this.#settings;
    if (seen !== undefined) {
      this.#seen = seen;
      this.#resyncAtMs = this.#lastTurnMs + resyncMs;
    } else {
      this.#seen = await this.#parts.host.read(signal).catch((error: unknown) => {
        this.#parts.log.warn("Cannot read this host yet", { error: describeError(error) });
        return undefined;
      });
    }
    if (fileTime !== undefined) {
      this.#told = this.mesh;
      this.#parts.log.info("Starting from the last file", {
        peers: this.#told.peers.length,
        writtenAt: fileTime.toISOString(),
      });
    }
    // The Curator is followed at once: a host that hangs must not keep it waiting.
    const following = this.#follow(signal);
    // What it has said while this host was read makes one mesh with the last file, not a second one.
    if (this.#parts.events !== undefined) await giveWay();
    this.#bell.clear();
    await Promise.all([following, this.#watchOwn(signal), this.#loop(signal)]);
  }

  /**
   * Only listens, and applies nothing: until all that the Curator knows has been heard. Throws ClusternetError with
   * exit 75 when `timeoutMs` run out first.
   */
  async hear(timeoutMs: number, signal: AbortSignal): Promise<void> {
    const { tracker, curator, host, clock } = this.#parts;
    this.#seen = await host.read(signal);
    // The mesh of before decides which picture removes too much (C4.8).
    this.wanted();
    let lastProblems: readonly Problem[] = [];
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
      // Taken before the follower ends: it takes its problems with it.
      lastProblems = curator.problems.get();
      stop.abort();
    };
    await Promise.all([listen(), limit()]);
    if (tracker.heardOut || signal.aborted) return;
    const reasons = [
      "no full picture has come from a Curator",
      ...lastProblems.map(({ message }) => message),
    ];
    throw new ClusternetError(
      `Cannot see the whole mesh within ${timeoutMs / 1000} s: ${reasons.join("; ")}`,
      {
        exit: exitStatus.temporary,
      },
    );
  }

  /** The newest mesh, whether or not it is applied: who is behind a peer of the interface. */
  get mesh(): Mesh {
    return this.#parts.tracker.build(this.#currentRules(this.#parts.own.get())).mesh;
  }

  /** The kernel told of a change that may concern us: the host is read and compared at once. */
  hint(): void {
    this.#parts.host.invalidate();
    this.#hinted = true;
    this.#bell.poke();
  }

  /** When the loop last turned, by the clock's `nowMs`. */
  get lastTurnMs(): number {
    return this.#lastTurnMs;
  }

  /** The mesh and the host as wanted by all that is known now. */
  wanted(): {
    readonly wanted: WantedHost;
    readonly problems: readonly Problem[];
    readonly file: readonly Uint8Array[];
  } {
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
      this.#events++;
      this.#askAgain();
      this.#bell.poke();
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
      if (next !== last) this.#bell.poke();
      last = next;
    }
  }

  async #loop(signal: AbortSignal): Promise<void> {
    const { clock, tracker } = this.#parts;
    let isStart = true;
    while (!signal.aborted) {
      const startMs = clock.nowMs();
      this.#hinted = false;
      this.#events = 0;
      await this.#turn(signal);
      const endMs = clock.nowMs();
      this.#lastTurnMs = endMs;
      const isFlood = this.#hurriedTurns >= lastingTurns;
      const restMs = isFlood ? Math.min((endMs - startMs) * 2, maxRestMs) : 0;
      // The picture that comes right after the last file was applied is no flood.
      this.#nextTurnMs = isStart ? endMs : Math.max(startMs + minApplyIntervalMs, endMs + restMs);
      isStart = false;
      const dueMs = Math.min(this.#resyncAtMs, this.#retryAtMs ?? Infinity, tracker.settleAtMs ?? Infinity);
      await this.#bell.wait(Math.min(Math.max(0, dueMs - clock.nowMs()), pulseMs), signal, clock);
      // What fails makes hints of its own (a link that comes and goes again): they must not take the place of the backoff.
      if (this.#hinted && this.#retryAtMs !== undefined) {
        this.#nextTurnMs = Math.max(this.#nextTurnMs, endMs + failingHintMs);
      }
      const early = this.#nextTurnMs - clock.nowMs();
      this.#hurriedTurns = early > 0 ? this.#hurriedTurns + 1 : 0;
      if (early > 0) await clock.sleep(early, signal);
      else await this.#gatherBurst(signal);
      // Whatever rang meanwhile is seen by the turn that comes now.
      this.#bell.clear();
    }
  }

  /** Lets what has come in the same instant be heard, and a burst come to its end, so that one turn serves all of it. */
  async #gatherBurst(signal: AbortSignal): Promise<void> {
    const { clock } = this.#parts;
    const startMs = clock.nowMs();
    await new Promise((resolve) => setImmediate(resolve));
    let before = burstEvents;
    while (this.#events > before && clock.nowMs() - startMs < burstLimitMs && !signal.aborted) {
      before = this.#events;
      await clock.sleep(burstQuietMs, signal);
    }
  }

  async #turn(signal: AbortSignal): Promise<void> {
    const { clock, host, log, tracker, problems } = this.#parts;
    if (clock.nowMs() >= this.#resyncAtMs) {
      this.#resyncAtMs = clock.nowMs() + this.#settings.resyncMs;
      host.invalidate();
    }
    tracker.settle(clock.nowMs());
    const { wanted, problems: meshProblems, file: pieces } = this.wanted();
    // Taken together with the mesh: more may be heard while this one is applied.
    const heard = this.#heard();
    const { isHeld } = tracker;
    problems.replace("mesh", meshProblems);
    const writing = this.#writeFile(pieces);
    const stamp = writing.then((file) => file.stamp);
    const result = await host.apply(wanted, signal, stamp);
    const { isFailed } = await writing;
    // What was cut short because the agent stops is nobody's problem.
    if (signal.aborted) return;
    problems.replace("host", result.problems);
    if (result.seen !== undefined) this.#seen = result.seen;
    if (result.done.length > 0) {
      log.info("Applied the mesh", { peers: wanted.peers.length, steps: result.done.length });
    }
    const holds = result.complete && !result.problems.some(({ kind }) => blocking.has(kind));
    if (holds) {
      // Before its peers, of which a log that cannot keep up may lose some.
      if (!isHeld) this.#tellInStep(heard, wanted.peers.length);
      this.#tellChanges({ peers: wanted.peers });
    }
    if (!isFailed && result.complete) {
      this.#retryAtMs = undefined;
      this.#backoff.reset();
    } else {
      this.#retryAtMs = clock.nowMs() + this.#backoff.next();
    }
    this.#publish({ peers: wanted.peers }, heard, holds, result.problems);
    // Addresses that came or went on this host change what others may claim: one more turn sees them.
    if (this.#rules !== this.#currentRules(this.#parts.own.get())) this.#bell.poke();
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

  /** One line a stream: the interface holds all that its Curator knows, and nothing else. */
  #tellInStep({ heardOut, stream }: Pick<PullState, "heardOut" | "stream">, peers: number): void {
    if (!heardOut || stream === this.#toldStream) return;
    this.#toldStream = stream;
    this.#parts.log.info("In step with the Curator", { peers });
  }

  /** One line a peer that came, went or changed, when it holds; of many in a minute the first ones, and later a count. */
  #tellChanges(mesh: Mesh): void {
    const { log, clock } = this.#parts;
    const changes = diffMeshes(this.#told, mesh);
    this.#told = mesh;
    const nowMs = clock.nowMs();
    if (nowMs - this.#tellingSinceMs >= loggedWindowMs) {
      if (this.#untold > 0) log.info("More peers changed", { count: this.#untold });
      this.#tellingSinceMs = nowMs;
      this.#toldSingly = 0;
      this.#untold = 0;
    }
    const singly = changes.slice(0, Math.max(0, loggedSingly - this.#toldSingly));
    this.#toldSingly += singly.length;
    this.#untold += changes.length - singly.length;
    for (const { kind, peer } of singly) {
      log.info(`Peer ${kind}`, {
        node: peer.nodeId,
        publicKey: peer.publicKey,
        address: peer.address?.text,
        prefixes: peer.prefixes.map((each) => each.text).join(" "),
      });
    }
  }

  /** What the file is known by if it holds this. Never throws. */
  async #writeFile(
    pieces: readonly Uint8Array[],
  ): Promise<{ readonly stamp?: FileStamp; readonly isFailed: boolean }> {
    const { file, problems, tracker } = this.#parts;
    if (this.#settings.keepFile === true && !tracker.believed) return { isFailed: false };
    try {
      const { stamp, isNew } = await file.write(pieces);
      if (isNew) problems.replace("last-file", []);
      problems.replace("file", []);
      return { stamp, isFailed: false };
    } catch (error) {
      problems.replace("file", [{ kind: "file-unwritable", message: describeInLine(error) }]);
      return { isFailed: true };
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

  /** The rules of judging; the same object while they say the same, so that nothing is judged twice. */
  #currentRules(own: Own): BuildRules {
    const hostAddresses = this.#ownEndpoints();
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

  /** Addresses of this host that another node could announce as its own: not every address of a pod's device. */
  #ownEndpoints(): ReadonlySet<string> {
    const of = this.#seen?.addresses ?? noAddresses;
    if (this.#endpoints?.of !== of) {
      const usable = [...of].filter((text) => {
        const address = decodeAddress(text);
        if ("reason" in address || unusableReason(address) !== undefined) return false;
        return !this.#settings.clusterNets.some((net) => containsAddress(net, address));
      });
      this.#endpoints = { of, texts: new Set(usable) };
    }
    return this.#endpoints.texts;
  }
}
