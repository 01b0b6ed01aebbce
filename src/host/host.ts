/**
 * This host's interface, routes and loopback addresses, kept as wanted.
 *
 * Reads what is there at the first apply, after a failure and after `invalidate`; else plans against a model of
 * it (C4.9). Steps whose outcome the kernel decides (a new link, a port) are followed by a reading, and what did not
 * hold is reported. One call at a time: the caller (pull.ts) is a single loop.
 *
 * What has to outlive this process, above all which loopback addresses are ours, is handed to a `HostMemory`
 * before the host is changed.
 */
import type { Clock } from "../async.ts";
import { foldStep } from "../core/host-fold.ts";
import {
  planDown,
  planHost,
  type DownWanted,
  type HostPlan,
  type Remembered,
  type SeenHost,
  type Step,
  type WantedHost,
} from "../core/host-plan.ts";
import { HandshakeBook, type LookTime } from "../core/handshake-book.ts";
import { announcedEndpoint, type SeenPeer } from "../core/host-state.ts";
import type { PublicKey } from "../core/key.ts";
import { findPeer, type Peer } from "../core/mesh.ts";
import { containsAddress, unusableReason, type Address, type Prefix } from "../core/prefix.ts";
import { quote, quotePath, type Problem } from "../core/problem.ts";
import { SeenPeers } from "../core/seen-peers.ts";
import { ClusternetError, messageOf } from "../errors.ts";
import type { Logger } from "../log.ts";
import { applySteps, knowsPlusAllowedIps, portInUse, type Applied, type ApplyOptions } from "./apply.ts";
import type { FollowCommand, RunCommand } from "./command.ts";
import { stampAt, type FileStamp } from "./files.ts";
import { readKeyFile } from "./key-file.ts";
import { MeshFile } from "./mesh-file.ts";
import { followHints, type Hint } from "./monitor.ts";
import { readHost } from "./read.ts";
import type { ReadDump } from "./wg-dump.ts";
import { chooseImplementation, type Implementation } from "./wireguard-go.ts";

export interface ApplyResult {
  /** Everything wanted holds, but for what `problems` names as left alone. */
  readonly complete: boolean;
  /** Steps that were carried out. */
  readonly done: readonly Step[];
  readonly problems: readonly Problem[];
  /** The host as known afterwards; absent when it could not be read. */
  readonly seen?: SeenHost;
}

export interface Host {
  /** Forgets the model: the next apply reads the host first. */
  invalidate(): void;
  /** Reads the host as it is now. Throws CommandError; soon after `signal` aborts also for a program that hangs. */
  read(signal?: AbortSignal): Promise<SeenHost>;
  /**
   * Makes the host as wanted, changing only what differs. Never throws for what the host refuses: that is a problem.
   * Ends within about a second when `signal` aborts, after a whole step; what is left is then not complete.
   * `written`, if given, takes the place of `wanted.configWritten`: nothing is changed before the file is written, as it
   * is known by this stamp, or cannot be.
   */
  apply(
    wanted: WantedHost,
    signal?: AbortSignal,
    written?: Promise<FileStamp | undefined>,
  ): Promise<ApplyResult>;
  /** The steps that `apply` would carry out, without doing any of them. */
  plan(wanted: WantedHost): Promise<ApplyResult>;
  /**
   * Yields whenever the kernel tells of a change that may concern us (a hint, not a fact) until `signal` aborts. Never
   * throws. `underlayDevices`: names, as of now, of those whose changes concern us too.
   */
  hints(signal: AbortSignal, underlayDevices: () => readonly string[]): AsyncIterable<Hint>;
}

/** What of the host must be known after a restart. */
export interface HostRemembers {
  /** Added to `lo` by this program in this boot, and not taken away since. */
  readonly loopbackAddresses: readonly Address[];
  /** Every ClusterNet that may still be routed or guarded. */
  readonly clusterNets: readonly Prefix[];
  readonly interfaceName?: string;
  readonly listenPort?: number;
}

/** Keeps `HostRemembers` over restarts. */
export interface HostMemory {
  get(): HostRemembers;
  /** Remembers durably. A rejection is logged and the host changed all the same: what is lost is only the clean-up. */
  set(next: HostRemembers): Promise<void>;
}

export interface HostOptions {
  readonly run: RunCommand;
  readonly follow: FollowCommand;
  readonly interfaceName: string;
  /** File of the private key, as `wg set … private-key` reads it. */
  readonly keyFile: string;
  /** File of the whole mesh, as `wg syncconf` reads it. */
  readonly configFile: string;
  readonly wireguard: Implementation | "auto";
  readonly memory: HostMemory;
  /** Public keys that files of ours name, besides the wanted one (C4.11). */
  readonly ourKeys: ReadonlySet<PublicKey>;
  readonly log: Logger;
  readonly clock: Clock;
  /** Finds a program in PATH. */
  readonly find?: (name: string) => string | undefined;
  /** Text of /proc/net/unix; default that of this process' network namespace. */
  readonly readUnixSockets?: () => Promise<string>;
}

export function createHost(options: HostOptions): LinuxHost {
  return new LinuxHost(options);
}

export class LinuxHost implements Host {
  readonly #options: HostOptions;
  /** What is known of the host; absent: it must be read first. */
  #model: Model | undefined;
  /** As last read by the loop that applies: most peers show as before when they are read again. */
  #lastDump: ReadDump | undefined;
  /** What all peers were brought to or found to be, and those that may be otherwise since; absent: any may. */
  #asWanted: { readonly wanted: WantedHost; readonly unsure: ReadonlySet<PublicKey> } | undefined;
  /** Raised by each `invalidate`: what was begun before it knows nothing of what it told of. */
  #generation = 0;
  #index: number | undefined;
  #implementation: Implementation | undefined;
  #plusAllowedIps: boolean | undefined;
  #networks: readonly Prefix[] = [];
  #starting = true;
  /** The peers whose endpoints were last set or found right. */
  #right: Pick<WantedHost, "peers" | "listenPort"> = { peers: [], listenPort: 0 };
  /** Endpoints that commands which failed since then were to set. */
  #tried: ReadonlyMap<PublicKey, ReadonlySet<string>> = new Map();
  /** Peers that were wanted when all was last done, and keys of those wanted since then that may be there. */
  #donePeers: readonly Peer[] = [];
  #begunPeers: ReadonlySet<PublicKey> = new Set();
  /** Since when the received bytes of peers stand still: of those that are not in the map since `#allStillSinceMs`. */
  readonly #stillSinceMs = new Map<PublicKey, number>();
  #allStillSinceMs = 0;
  #readAtMs = 0;
  readonly #handshakes = new HandshakeBook();

  constructor(options: HostOptions) {
    this.#options = options;
  }

  /** The WireGuard in use; undefined while no interface of ours has been seen or made. */
  get implementation(): Implementation | undefined {
    return this.#implementation;
  }

  invalidate(): void {
    this.#generation++;
    this.#model = undefined;
  }

  async read(signal?: AbortSignal): Promise<SeenHost> {
    const run = runUntil(this.#options.run, signal);
    return this.#tell(await this.#read(run, this.#options.interfaceName, this.#knownNetworks([])));
  }

  /** As `read`, at the start: what it finds is what is known, so that the first apply need not look again. */
  async readFirst(): Promise<SeenHost> {
    const { generation, run } = this.#begin(undefined);
    const networks = this.#knownNetworks([]);
    const seen = this.#follow(await this.#read(run, this.#options.interfaceName, networks));
    this.#keep(seen, networks, generation);
    return seen;
  }

  async plan(wanted: WantedHost): Promise<ApplyResult> {
    try {
      const { run } = this.#options;
      const former = await this.#planFormerInterface(wanted, run);
      const networks = this.#knownNetworks(wanted.clusterNets);
      const found = this.#tell(await this.#read(run, wanted.interfaceName, networks, wanted.publicKey));
      const seen = former === undefined ? found : withoutLink(found, former.name);
      const plan = planHost(wanted, seen, this.#remembered(wanted));
      const steps = [...(former?.plan.steps ?? []), ...plan.steps];
      return { complete: steps.length === 0, done: steps, problems: plan.problems, seen };
    } catch (error) {
      return unreadable(error);
    }
  }

  async apply(
    wanted: WantedHost,
    signal?: AbortSignal,
    written?: Promise<FileStamp | undefined>,
  ): Promise<ApplyResult> {
    this.#networks = wanted.clusterNets;
    const former = await this.#removeFormerInterface(wanted, signal, written);
    if (isStopping(signal)) return { complete: false, done: [], problems: former };
    const first = await this.#applyOnce(wanted, signal, written);
    // A configuration that `wg` refuses as a whole is set peer by peer, so that what is wrong with one costs one.
    const refused = !isStopping(signal) && first.left.some((step) => step.kind === "sync-conf");
    const { configWritten: _refused, ...peerByPeer } = wanted;
    const { left: _left, ...result } = refused ? await this.#applyOnce(peerByPeer, signal) : first;
    return {
      ...result,
      complete: result.complete && former.length === 0,
      done: refused ? [...first.done, ...result.done] : result.done,
      problems: [...former, ...result.problems],
    };
  }

  /** Takes away what is ours (`clusternet down`). Problems name what is left alone or was refused. */
  async down(wanted: DownWanted): Promise<ApplyResult> {
    this.invalidate();
    const turn = this.#begin(undefined);
    try {
      const { seen } = await this.#read(
        turn.run,
        wanted.interfaceName,
        this.#knownNetworks(wanted.clusterNets),
        wanted.publicKey,
      );
      const plan = planDown(wanted, seen, this.#ownership(wanted));
      const applied = await this.#carryOut(plan, { ...wanted, ...nothing }, seen, turn);
      const complete = applied.left.length === 0;
      const { loopbackAddresses } = this.#options.memory.get();
      if (complete) await this.#remember({ loopbackAddresses, clusterNets: [] });
      return { complete, done: applied.done, problems: [...plan.problems, ...applied.problems] };
    } catch (error) {
      return unreadable(error);
    }
  }

  hints(signal: AbortSignal, underlayDevices: () => readonly string[]): AsyncIterable<Hint> {
    const { follow, log, clock, interfaceName } = this.#options;
    const concern = () => ({
      interfaceName,
      ...(this.#index === undefined ? {} : { index: this.#index }),
      networks: this.#networks.map((network) => network.text),
      underlayDevices: underlayDevices(),
    });
    return followHints({ follow, log, clock, concern }, signal);
  }

  #begin(signal: AbortSignal | undefined): Turn {
    return { generation: this.#generation, run: runUntil(this.#options.run, signal), signal };
  }

  async #applyOnce(
    wanted: WantedHost,
    signal: AbortSignal | undefined,
    written?: Promise<FileStamp | undefined>,
  ): Promise<ApplyResult & Pick<Applied, "left">> {
    const turn = this.#begin(signal);
    let before: SeenHost | undefined;
    try {
      before = await this.#known(wanted, turn);
      // What no plan has looked at yet is unsure still.
      const unlooked =
        this.#model?.held === undefined || this.#model.unsure !== undefined
          ? []
          : (this.#asWanted?.unsure ?? []);
      const plan = await this.#plan(wanted, before, written);
      const configStamp = await written;
      if (plan.steps.length > 0) await this.#rememberBefore(wanted);
      const { seen, ...applied } = await this.#carryOut(plan, wanted, before, { ...turn, configStamp });
      const unset = applied.left.filter((step) => step.kind === "set-peers" || step.kind === "sync-conf");
      if (unset.length > 0) this.#doubtEndpoints(unset, wanted);
      else this.#learnEndpoints(wanted);
      const problems = [...plan.problems, ...applied.problems];
      if (applied.left.length > 0) {
        this.#asWanted = undefined;
        this.#noteBegun(wanted, before);
        return { complete: false, ...applied, problems };
      }
      // Whoever was not wanted any more is gone now.
      this.#donePeers = wanted.peers;
      this.#begunPeers = new Set();
      const verified = applied.done.some(isDecidedByHost)
        ? await this.#verify(wanted, this.#begin(signal))
        : { seen, unheld: [], unsure: [...unlooked, ...plan.roaming, ...keysSet(applied.done)] };
      const complete = verified.unheld.length === 0;
      if (complete) await this.#rememberAfter(wanted, verified.seen);
      // An interface that is left alone holds nothing of ours.
      if (complete && this.#model !== undefined && !plan.problems.some(isForeignInterface)) {
        // All peers have been looked at; from now on only those are that change.
        if (wanted.exact) this.#lastDump?.dumped.forget();
        this.#model = { seen: this.#model.seen, networks: this.#model.networks, held: wanted };
        this.#asWanted = { wanted, unsure: new Set(verified.unsure) };
      } else {
        this.#asWanted = undefined;
      }
      return {
        complete,
        done: applied.done,
        left: [],
        problems: [...problems, ...verified.unheld],
        seen: verified.seen,
      };
    } catch (error) {
      this.#model = undefined;
      this.#asWanted = undefined;
      if (before !== undefined) this.#noteBegun(wanted, before);
      return { ...unreadable(error), left: [] };
    }
  }

  /** Made while the file is being written, which it hardly ever depends on. */
  async #plan(
    wanted: WantedHost,
    seen: SeenHost,
    written: Promise<FileStamp | undefined> | undefined,
  ): Promise<HostPlan> {
    const remembered = this.#remembered(wanted, this.#model);
    if (written === undefined) return planHost(wanted, seen, remembered);
    const plan = planHost({ ...wanted, configWritten: true }, seen, remembered);
    if ((await written) !== undefined || !plan.steps.some(({ kind }) => kind === "sync-conf")) return plan;
    return planHost({ ...wanted, configWritten: false }, seen, remembered);
  }

  /** What was wanted may be there in part. Of before only what still is: while nothing succeeds, keys must not add up. */
  #noteBegun(wanted: WantedHost, { interface: link }: SeenHost): void {
    const there = [...this.#begunPeers].filter((key) => link?.peers.has(key) === true);
    this.#begunPeers = new Set([...there, ...wanted.peers.map((peer) => peer.publicKey)]);
  }

  /** The model, read anew when there is none or when it does not cover these networks. */
  async #known(wanted: WantedHost, { run, generation }: Turn): Promise<SeenHost> {
    const networks = this.#knownNetworks(wanted.clusterNets);
    const covered = textsOf(networks);
    if (this.#model?.networks === covered) return this.#model.seen;
    const seen = this.#follow(await this.#read(run, wanted.interfaceName, networks, wanted.publicKey));
    this.#keep(seen, networks, generation);
    if (this.#model?.seen === seen && this.#asWanted !== undefined) {
      const { wanted: held, unsure } = this.#asWanted;
      this.#model = { ...this.#model, held, unsure };
    }
    return seen;
  }

  /** Makes this the model, unless a hint came since it was begun. */
  #keep(seen: SeenHost, networks: readonly Prefix[], generation: number): void {
    if (generation === this.#generation) this.#model = { seen, networks: textsOf(networks) };
  }

  async #read(
    run: RunCommand,
    interfaceName: string,
    networks: readonly Prefix[],
    publicKey?: PublicKey,
  ): Promise<Reading> {
    const { readUnixSockets, ourKeys, clock } = this.#options;
    let read: Omit<Reading, "seen"> = {};
    const seen = await readHost({
      run,
      interfaceName,
      networks,
      ourKeys: publicKey === undefined ? ourKeys : new Set([...ourKeys, publicKey]),
      ...(this.#index === undefined ? {} : { index: this.#index }),
      ...(this.#lastDump === undefined ? {} : { before: this.#lastDump }),
      remember: (dump, changed) => {
        read = changed === undefined ? { dump } : { dump, changed };
      },
      ...(readUnixSockets === undefined ? {} : { readUnixSockets }),
    });
    this.#index = seen.interface?.index ?? this.#index;
    this.#implementation = seen.interface?.implementation ?? this.#implementation;
    if (seen.interface === undefined) return { seen };
    const look = {
      nowMs: clock.nowMs(),
      wallSeconds: clock.wallTime().getTime() / 1_000,
      timeSetMs: clock.timeSetMs(),
    };
    return { ...read, seen, look };
  }

  /** A reading for others than the loop that applies: it may overtake one of that loop's, so nothing of it is noted. */
  #tell({ seen, look }: Reading): SeenHost {
    return withPeers(seen, (peers) => (look === undefined ? peers : this.#handshakes.tell(peers, look)));
  }

  /**
   * Notes what a reading shows otherwise than the one before. Only of the loop that applies, which makes one at a time:
   * what changes between two readings must be what changed since something was planned by the first.
   */
  #follow({ seen: read, look, dump, changed }: Reading): SeenHost {
    const seen = withPeers(read, (peers) =>
      // Ready to be changed peer by peer.
      SeenPeers.of(look === undefined ? peers : this.#handshakes.note(peers, look, changed)),
    );
    const before = this.#lastDump?.peers;
    this.#lastDump = dump;
    this.#asWanted =
      this.#asWanted === undefined || changed === undefined
        ? undefined
        : { ...this.#asWanted, unsure: new Set([...this.#asWanted.unsure, ...changed]) };
    this.#readAtMs = this.#options.clock.nowMs();
    this.#noteBytes(seen.interface?.peers ?? new Map(), before, changed);
    return seen;
  }

  /**
   * When most peers are new, as after the first apply, only the others are noted one by one, and each since when: of
   * 10,000 new ones that is no map.
   */
  #noteBytes(
    peers: ReadonlyMap<PublicKey, SeenPeer>,
    before: ReadonlyMap<PublicKey, SeenPeer> | undefined,
    changed: readonly PublicKey[] | undefined,
  ): void {
    if (before === undefined || changed === undefined) {
      this.#stillSinceMs.clear();
      this.#allStillSinceMs = this.#readAtMs;
      return;
    }
    const areMostNew = 2 * changed.filter((publicKey) => !before.has(publicKey)).length > peers.size;
    if (areMostNew) {
      for (const publicKey of before.keys()) {
        this.#stillSinceMs.set(publicKey, this.#stillSinceMs.get(publicKey) ?? this.#allStillSinceMs);
      }
      this.#allStillSinceMs = this.#readAtMs;
    }
    for (const publicKey of changed) {
      const [peer, old] = [peers.get(publicKey), before.get(publicKey)];
      if (peer === undefined) this.#stillSinceMs.delete(publicKey);
      else if (old === undefined && areMostNew) continue;
      else if (peer.receivedBytes !== old?.receivedBytes) this.#stillSinceMs.set(publicKey, this.#readAtMs);
    }
  }

  /**
   * Carries the plan out and keeps the model in step; any failure drops it, and so does a hint since the turn began.
   * `seen` is the host as it is then.
   */
  async #carryOut(
    plan: HostPlan,
    wanted: WantedHost,
    seen: SeenHost,
    { run, generation, signal, configStamp }: Turn & { readonly configStamp?: FileStamp | undefined },
  ): Promise<Applied & { readonly seen: SeenHost }> {
    const { steps } = plan;
    if (steps.length === 0) return { done: [], problems: [], left: [], seen };
    const { keyFile, configFile, interfaceName, log } = this.#options;
    if (steps.some((step) => step.kind === "add-link")) {
      this.#implementation = await chooseImplementation({ ...this.#options, run });
      log.info("Creating the interface", { interface: interfaceName, implementation: this.#implementation });
    }
    this.#plusAllowedIps ??= knowsPlusAllowedIps(await run(["wg", "--version"]));
    const options: ApplyOptions = {
      run,
      context: {
        keyFile,
        configFile,
        implementation: this.#implementation ?? "kernel",
        plusAllowedIps: this.#plusAllowedIps,
      },
      interfaceName,
      listenPort: wanted.listenPort,
      nodeIdOf: (publicKey) => wanted.peers.find((peer) => peer.publicKey === publicKey)?.nodeId,
      checkFiles: (step) => this.#checkFiles(step, wanted, configStamp),
      rememberLoopback: (address, ours) => this.#rememberLoopback(address, ours),
      onDone: (step) => log.debug("Applied a step", { step: step.kind }),
      ...(signal === undefined ? {} : { signal }),
    };
    const applied = await applySteps(steps, options);
    this.#model = undefined;
    if (applied.left.length > 0) {
      return { ...applied, seen: applied.done.reduce((now, step) => foldStep(now, step, wanted), seen) };
    }
    this.#keep(plan.after, this.#knownNetworks(wanted.clusterNets), generation);
    return { ...applied, seen: plan.after };
  }

  /** Reads the host again and says what did not hold: a port that wireguard-go could not take shows only so. */
  async #verify(
    wanted: WantedHost,
    turn: Turn,
  ): Promise<{
    readonly seen: SeenHost;
    readonly unheld: readonly Problem[];
    readonly unsure: readonly PublicKey[];
  }> {
    this.#model = undefined;
    const seen = await this.#known(wanted, turn);
    const { steps, roaming: unsure } = planHost(wanted, seen, this.#remembered(wanted));
    if (steps.length === 0) return { seen, unheld: [], unsure };
    this.#model = undefined;
    const { interfaceName, listenPort } = wanted;
    if (steps.some((step) => step.kind === "set-device" && step.listenPort !== undefined)) {
      return { seen, unheld: [portInUse(interfaceName, listenPort)], unsure };
    }
    const what = steps.map((step) => step.kind).join(", ");
    const message = `Cannot keep interface ${quote(interfaceName)} as wanted: changed again right after it was set (${what})`;
    return { seen, unheld: [{ kind: "apply-failed", message }], unsure };
  }

  /** `wg` clears the key when the file has none, so the files are read before it reads them. */
  async #checkFiles(step: Step, wanted: WantedHost, configStamp: FileStamp | undefined): Promise<void> {
    const { keyFile, configFile } = this.#options;
    if (step.kind === "set-device" && step.key) {
      const found = await readKeyFile(keyFile);
      if (found === undefined)
        throw new ClusternetError(`Cannot use ${quotePath(keyFile)}: there is no such file`);
      if (found.key.publicKey !== wanted.publicKey) {
        throw new ClusternetError(
          `Cannot use ${quotePath(keyFile)}: its private key is not the one of this node`,
        );
      }
    }
    if (step.kind === "sync-conf") {
      // What was just written need not be read again.
      if (configStamp !== undefined && configStamp === (await stampAt(configFile))) return;
      const found = await new MeshFile(configFile).read(wanted.publicKey, { closeToOthers: false });
      if (found.kind === "unusable") throw new ClusternetError(textOf(found.problems));
      if (
        found.kind === "none" ||
        found.nodes.length !== wanted.peers.length ||
        found.listenPort !== wanted.listenPort
      ) {
        throw new ClusternetError(
          `Cannot use ${quotePath(configFile)}: it holds another mesh than the one to apply`,
        );
      }
    }
  }

  #learnEndpoints(wanted: WantedHost): void {
    this.#starting = false;
    this.#tried = new Map();
    this.#right = { peers: wanted.peers, listenPort: wanted.listenPort };
  }

  /** What a command that failed may have set all the same: an endpoint found so has not roamed. */
  #doubtEndpoints(unset: readonly Step[], wanted: WantedHost): void {
    const wantedKeys = new Set(wanted.peers.map((peer) => peer.publicKey));
    const tried = new Map([...this.#tried].filter(([publicKey]) => wantedKeys.has(publicKey)));
    for (const step of unset) {
      const changes =
        step.kind === "set-peers"
          ? step.changes
          : wanted.peers.map((peer) => ({ ...peer, endpoint: announcedEndpoint(peer, wanted.listenPort) }));
      for (const { publicKey, endpoint } of changes) {
        if (endpoint === undefined) continue;
        const before = tried.get(publicKey) ?? new Set();
        tried.set(publicKey, new Set([...before, endpoint].slice(-maxTried)));
      }
    }
    this.#tried = tried;
  }

  #ownership({
    clusterNets,
    publicKey,
  }: DownWanted): Omit<Remembered, "endpoints" | "formerPeers" | "held" | "unsure"> {
    const { memory, ourKeys } = this.#options;
    const remembers = memory.get();
    const now = new Set(clusterNets.map((network) => network.text));
    return {
      addedLoopback: new Set(this.#ownLoopback(clusterNets).map((address) => address.text)),
      ourKeys: new Set([...ourKeys, publicKey]),
      formerClusterNets: remembers.clusterNets.filter((network) => !now.has(network.text)),
    };
  }

  /**
   * Addresses that are remembered as added by us and can be: only those inside a ClusterNet ever are. A file that
   * names ::1 or an address of somebody else's must not take it away.
   */
  #ownLoopback(wanted: readonly Prefix[]): readonly Address[] {
    const { loopbackAddresses, clusterNets } = this.#options.memory.get();
    const networks = [...clusterNets, ...wanted];
    return loopbackAddresses.filter(
      (address) =>
        unusableReason(address) === undefined &&
        networks.some((network) => containsAddress(network, address)),
    );
  }

  #remembered(wanted: WantedHost, { held, unsure }: Pick<Model, "held" | "unsure"> = {}): Remembered {
    const [stillSinceMs, allSinceMs, readAtMs] = [this.#stillSinceMs, this.#allStillSinceMs, this.#readAtMs];
    const quietMs = (publicKey: PublicKey): number => readAtMs - (stillSinceMs.get(publicKey) ?? allSinceMs);
    return {
      ...this.#ownership(wanted),
      // With `held` nobody asks.
      formerPeers:
        held === undefined
          ? new Set([...this.#donePeers.map((peer) => peer.publicKey), ...this.#begunPeers])
          : new Set(),
      ...(held === undefined ? {} : { held }),
      ...(unsure === undefined ? {} : { unsure }),
      endpoints: {
        starting: this.#starting,
        announced: (peer) => announcedBefore(this.#right, peer),
        tried: this.#tried,
        quietMs: { get: quietMs },
        nowSeconds: Math.floor(this.#options.clock.wallTime().getTime() / 1000),
      },
    };
  }

  /** ClusterNets to look at: those wanted, and those that an earlier run may have left. */
  #knownNetworks(wanted: readonly Prefix[]): readonly Prefix[] {
    const all = [...wanted, ...this.#networks, ...this.#options.memory.get().clusterNets];
    return [...new Map(all.map((network) => [network.text, network])).values()];
  }

  /** The interface of an earlier run under another --interface: it holds the port and the prefixes. */
  async #removeFormerInterface(
    wanted: WantedHost,
    signal: AbortSignal | undefined,
    written: Promise<FileStamp | undefined> | undefined,
  ): Promise<Problem[]> {
    const { memory } = this.#options;
    if (this.#formerName(wanted) === undefined) return [];
    await written;
    try {
      const turn = this.#begin(signal);
      const former = await this.#planFormerInterface(wanted, turn.run);
      if (former !== undefined) {
        const applied = await this.#carryOut(former.plan, wanted, former.seen, turn);
        this.#model = undefined;
        if (applied.left.length > 0) return [...applied.problems];
      }
      await this.#remember({ ...memory.get(), interfaceName: wanted.interfaceName });
      return [];
    } catch (error) {
      return [...unreadable(error).problems];
    }
  }

  #formerName({ interfaceName }: WantedHost): string | undefined {
    const name = this.#options.memory.get().interfaceName;
    return name === interfaceName ? undefined : name;
  }

  /** The steps that take the interface of an earlier run away; undefined: there is none that is ours. */
  async #planFormerInterface(
    wanted: WantedHost,
    run: RunCommand,
  ): Promise<{ readonly name: string; readonly plan: HostPlan; readonly seen: SeenHost } | undefined> {
    const name = this.#formerName(wanted);
    if (name === undefined) return undefined;
    const { readUnixSockets } = this.#options;
    const ownership = this.#ownership(wanted);
    const seen = await readHost({
      run,
      interfaceName: name,
      networks: this.#knownNetworks(wanted.clusterNets),
      ourKeys: ownership.ourKeys,
      ...(readUnixSockets === undefined ? {} : { readUnixSockets }),
    });
    // A foreign interface of that name is nobody's business any more, nor is one that got our new name meanwhile.
    if (seen.interface?.name !== name) return undefined;
    const link = { interfaceName: name, clusterNets: [], publicKey: wanted.publicKey };
    const nothingElse = { ...ownership, addedLoopback: new Set<string>(), formerClusterNets: [] };
    const plan = planDown(link, seen, nothingElse);
    return plan.steps.length === 0 ? undefined : { name, plan, seen };
  }

  async #rememberLoopback(address: Address, ours: boolean): Promise<void> {
    const before = this.#options.memory.get();
    const others = before.loopbackAddresses.filter((each) => each.text !== address.text);
    await this.#remember({ ...before, loopbackAddresses: ours ? [...others, address] : others });
  }

  /** Before the first change: what may be left behind when this process dies now. */
  async #rememberBefore(wanted: WantedHost): Promise<void> {
    const before = this.#options.memory.get();
    await this.#remember({
      ...before,
      clusterNets: this.#knownNetworks(wanted.clusterNets),
      interfaceName: before.interfaceName ?? wanted.interfaceName,
      listenPort: wanted.listenPort,
    });
  }

  /** After a whole apply: only what is there. */
  async #rememberAfter(wanted: WantedHost, seen: SeenHost): Promise<void> {
    const before = this.#options.memory.get();
    const there = new Set(seen.loopback);
    await this.#remember({
      ...before,
      loopbackAddresses: this.#ownLoopback(wanted.clusterNets).filter((address) => there.has(address.text)),
      clusterNets: wanted.clusterNets,
      interfaceName: before.interfaceName ?? wanted.interfaceName,
      listenPort: wanted.listenPort,
    });
    if (this.#model !== undefined) {
      this.#model = { ...this.#model, networks: textsOf(this.#knownNetworks(wanted.clusterNets)) };
    }
  }

  async #remember(next: HostRemembers): Promise<void> {
    const { memory, log } = this.#options;
    if (isSame(memory.get(), next)) return;
    try {
      await memory.set(next);
    } catch (error) {
      log.warn("What was changed on this host may be unknown after a restart", { reason: messageOf(error) });
    }
  }
}

/** What is known of the host without looking. */
interface Model {
  readonly seen: SeenHost;
  /** Texts of the networks for which it was read. */
  readonly networks: string;
  /** What was wanted when all of it was found or done, by this or an earlier reading. */
  readonly held?: WantedHost;
  /** Peers that the reading may show otherwise than that; absent once a plan has looked at them. */
  readonly unsure?: ReadonlySet<PublicKey>;
}

/** The host, and of the peers of its interface what they are worth for the next reading. */
interface Reading {
  /** With the handshakes as `wg` tells them. */
  readonly seen: SeenHost;
  /** When the interface was looked at, if there is one. */
  readonly look?: LookTime;
  readonly dump?: ReadDump;
  /** Peers that show otherwise than in the reading that was last noted; absent: any may. */
  readonly changed?: readonly PublicKey[];
}

/** One reading and what is done upon it. */
interface Turn {
  /** `LinuxHost`'s when it began. */
  readonly generation: number;
  /** Ends a program that hangs soon after `signal` aborts. */
  readonly run: RunCommand;
  readonly signal: AbortSignal | undefined;
}

function runUntil(run: RunCommand, signal: AbortSignal | undefined): RunCommand {
  return signal === undefined ? run : (argv, options) => run(argv, { ...options, signal });
}

function isStopping(signal: AbortSignal | undefined): boolean {
  return signal?.aborted === true;
}

/** So many endpoints of a peer are known as tried; one that changes its address all the time must not fill the memory. */
const maxTried = 4;

/** What `down` wants of all that it does not name. */
const nothing = { listenPort: 0, mtu: 0, peers: [], loopbackAddresses: [], exact: true } as const;

/** Steps of which the kernel, or wireguard-go, decides what comes of them. */
function isDecidedByHost(step: Step): boolean {
  return (
    step.kind === "add-link" ||
    step.kind === "rename-link" ||
    step.kind === "set-link" ||
    step.kind === "set-device" ||
    step.kind === "sync-conf"
  );
}

/** Peers that these steps have set. */
function keysSet(steps: readonly Step[]): readonly PublicKey[] {
  return steps.flatMap((step) =>
    step.kind === "set-peers" ? step.changes.map((each) => each.publicKey) : [],
  );
}

/** The endpoint by which the key of a peer was announced then, perhaps by another node. */
function announcedBefore(
  { peers, listenPort }: Pick<WantedHost, "peers" | "listenPort">,
  { nodeId, publicKey }: Peer,
): string | undefined {
  const ofNode = findPeer({ peers }, nodeId);
  const before =
    ofNode?.publicKey === publicKey ? ofNode : peers.find((peer) => peer.publicKey === publicKey);
  return before === undefined ? undefined : announcedEndpoint(before, listenPort);
}

function isForeignInterface({ kind }: Problem): boolean {
  return kind === "interface-foreign";
}

function withPeers(seen: SeenHost, change: (peers: Peers) => Peers): SeenHost {
  const { interface: link } = seen;
  return link === undefined ? seen : { ...seen, interface: { ...link, peers: change(link.peers) } };
}

type Peers = ReadonlyMap<PublicKey, SeenPeer>;

/** As it is seen once the link of this name is gone. */
function withoutLink({ interface: link, ...seen }: SeenHost, name: string): SeenHost {
  const routes = seen.routes.filter(({ device }) => device !== name);
  return { ...seen, routes, ...(link === undefined || link.name === name ? {} : { interface: link }) };
}

function textsOf(networks: readonly Prefix[]): string {
  return networks
    .map((network) => network.text)
    .toSorted()
    .join(" ");
}

function isSame(a: HostRemembers, b: HostRemembers): boolean {
  const key = ({ loopbackAddresses, clusterNets, interfaceName, listenPort }: HostRemembers): string =>
    [
      loopbackAddresses.map(({ text }) => text).join(" "),
      textsOf(clusterNets),
      interfaceName,
      listenPort,
    ].join("|");
  return key(a) === key(b);
}

function textOf(problems: readonly Problem[]): string {
  return problems.map(({ message }) => message).join("; ");
}

function unreadable(error: unknown): Pick<ApplyResult, "complete" | "done" | "problems"> {
  const hint = error instanceof ClusternetError && error.hint !== undefined ? ` (${error.hint})` : "";
  return {
    complete: false,
    done: [],
    problems: [{ kind: "apply-failed", message: `${messageOf(error)}${hint}` }],
  };
}
