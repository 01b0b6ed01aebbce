/**
 * This host's interface, routes and loopback addresses, kept as wanted.
 *
 * Reads what is there at the first apply, after a failure and after `invalidate`; else plans against a model of
 * it (C4.9). Steps whose outcome the kernel decides (a new link, a port) are followed by a reading, and what did not
 * hold is reported. One call at a time: the caller (pull.ts) is a single loop.
 *
 * What it knows lies in units of its own: what is ours (ownership.ts), the readings (host-reader.ts), the model
 * (core/host-model.ts), the peers that were set (core/peer-book.ts). What is here is the order of things.
 */
import type { Clock } from "../async.ts";
import { foldStep } from "../core/host-fold.ts";
import { HostModel } from "../core/host-model.ts";
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
import type { PublicKey } from "../core/key.ts";
import { PeerBook } from "../core/peer-book.ts";
import type { Prefix } from "../core/prefix.ts";
import { quote, type Problem } from "../core/problem.ts";
import { ClusternetError, messageOf } from "../errors.ts";
import { applySteps, knowsPlusAllowedIps, portInUse, type Applied, type ApplyOptions } from "./apply.ts";
import { runUntil, type FollowCommand, type RunCommand } from "./command.ts";
import type { FileStamp } from "./files.ts";
import { HostReader, type Reading } from "./host-reader.ts";
import { followHints, type Hint } from "./monitor.ts";
import { Ownership, type OwnershipParts } from "./ownership.ts";
import { readHost } from "./read.ts";
import { checkWgFiles, type WgFiles } from "./wg-files.ts";
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

export interface HostOptions extends WgFiles, OwnershipParts {
  readonly run: RunCommand;
  readonly follow: FollowCommand;
  readonly interfaceName: string;
  readonly wireguard: Implementation | "auto";
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
  readonly #ownership: Ownership;
  readonly #reader: HostReader;
  readonly #model = new HostModel();
  readonly #peers = new PeerBook();
  #implementation: Implementation | undefined;
  #plusAllowedIps: boolean | undefined;
  /** The log says that the interface is being made; it has not come about since. */
  #isMakingTold = false;
  /** ClusterNets of the last apply. */
  #networks: readonly Prefix[] = [];

  constructor(options: HostOptions) {
    this.#options = options;
    this.#ownership = new Ownership(options);
    this.#reader = new HostReader(options.clock);
  }

  /** The WireGuard in use; undefined while no interface of ours has been seen or made. */
  get implementation(): Implementation | undefined {
    return this.#implementation;
  }

  invalidate(): void {
    this.#model.invalidate();
  }

  async read(signal?: AbortSignal): Promise<SeenHost> {
    const run = runUntil(this.#options.run, signal);
    return this.#reader.tell(await this.#read(run, this.#ownership.networks(this.#networks)));
  }

  /** As `read`, at the start: what it finds is what is known, so that the first apply need not look again. */
  async readFirst(signal?: AbortSignal): Promise<SeenHost> {
    return await this.#readForModel(this.#ownership.networks(this.#networks), this.#begin(signal));
  }

  async plan(wanted: WantedHost): Promise<ApplyResult> {
    try {
      const { run } = this.#options;
      const former = await this.#planFormerInterface(wanted, run);
      const networks = this.#ownership.networks(wanted.clusterNets);
      const found = this.#reader.tell(await this.#read(run, networks, wanted.publicKey));
      this.#ownership.noteSeen(found, wanted);
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
    const refused = !isStopping(signal) && isConfigRefused(first.left);
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
      const networks = this.#ownership.networks(wanted.clusterNets);
      const { seen } = await this.#read(turn.run, networks, wanted.publicKey);
      this.#ownership.noteSeen(seen, wanted);
      const plan = planDown(wanted, seen, this.#ownership.of(wanted));
      const applied = await this.#carryOut(plan, { ...wanted, ...nothing }, seen, turn);
      const complete = applied.left.length === 0;
      if (complete) await this.#ownership.noteDown();
      return { complete, done: applied.done, problems: [...plan.problems, ...applied.problems] };
    } catch (error) {
      return unreadable(error);
    }
  }

  hints(signal: AbortSignal, underlayDevices: () => readonly string[]): AsyncIterable<Hint> {
    const { follow, log, clock, interfaceName } = this.#options;
    const concern = () => ({
      interfaceName,
      ...(this.#reader.index === undefined ? {} : { index: this.#reader.index }),
      networks: this.#networks.map((network) => network.text),
      underlayDevices: underlayDevices(),
    });
    return followHints({ follow, log, clock, concern }, signal);
  }

  #begin(signal: AbortSignal | undefined): Turn {
    return { generation: this.#model.generation, run: runUntil(this.#options.run, signal), signal };
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
      this.#ownership.noteSeen(before, wanted);
      const { unlooked } = this.#model;
      const plan = await this.#plan(wanted, before, written);
      const configStamp = await written;
      if (plan.steps.length > 0) await this.#ownership.noteBefore(wanted);
      const { seen, ...applied } = await this.#carryOut(plan, wanted, before, { ...turn, configStamp });
      this.#peers.note(wanted, before, applied.left);
      const problems = [...plan.problems, ...applied.problems];
      if (applied.left.length > 0) {
        this.#model.doubtPeers();
        return { complete: false, ...applied, problems, seen };
      }
      const verified = applied.done.some(isDecidedByHost)
        ? await this.#verify(wanted, this.#begin(signal))
        : { seen, unheld: [], unsure: [...unlooked, ...plan.roaming, ...keysSet(applied.done)] };
      const complete = verified.unheld.length === 0;
      if (complete) {
        await this.#ownership.noteAfter(wanted, verified.seen.loopback);
        this.#model.cover(this.#ownership.networks(wanted.clusterNets));
      }
      // An interface that is left alone holds nothing of ours.
      const isOurs = !plan.problems.some(({ kind }) => kind === "interface-foreign");
      const isHeld = complete && isOurs && this.#model.hold(wanted, verified.unsure);
      if (!isHeld) this.#model.doubtPeers();
      else if (wanted.exact) this.#reader.forgetPeers();
      return {
        complete,
        done: applied.done,
        left: [],
        problems: [...problems, ...verified.unheld],
        seen: verified.seen,
      };
    } catch (error) {
      this.#model.drop();
      this.#model.doubtPeers();
      if (before !== undefined) this.#peers.noteBegun(wanted, before);
      return { ...unreadable(error), left: [] };
    }
  }

  /** Made while the file is being written, which it hardly ever depends on. */
  async #plan(
    wanted: WantedHost,
    seen: SeenHost,
    written: Promise<FileStamp | undefined> | undefined,
  ): Promise<HostPlan> {
    const remembered = this.#remembered(wanted, this.#model.held);
    if (written === undefined) return planHost(wanted, seen, remembered);
    const plan = planHost({ ...wanted, configWritten: true }, seen, remembered);
    if ((await written) !== undefined || !plan.steps.some(({ kind }) => kind === "sync-conf")) return plan;
    return planHost({ ...wanted, configWritten: false }, seen, remembered);
  }

  /** The model, read anew when there is none or when it does not cover these networks. */
  async #known(wanted: WantedHost, turn: Turn): Promise<SeenHost> {
    const networks = this.#ownership.networks(wanted.clusterNets);
    return this.#model.seen(networks) ?? (await this.#readForModel(networks, turn, wanted.publicKey));
  }

  async #readForModel(
    networks: readonly Prefix[],
    { run, generation }: Turn,
    publicKey?: PublicKey,
  ): Promise<SeenHost> {
    const reading = await this.#read(run, networks, publicKey);
    const seen = this.#reader.note(reading);
    this.#model.takeReading(seen, networks, generation, reading.changed);
    return seen;
  }

  async #read(run: RunCommand, networks: readonly Prefix[], publicKey?: PublicKey): Promise<Reading> {
    const { interfaceName, readUnixSockets } = this.#options;
    const reading = await this.#reader.read({
      run,
      interfaceName,
      networks,
      ourKeys: this.#ownership.keys(publicKey),
      ...(readUnixSockets === undefined ? {} : { readUnixSockets }),
    });
    this.#implementation = reading.seen.interface?.implementation ?? this.#implementation;
    return reading;
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
      if (!this.#isMakingTold)
        log.info("Creating the interface", {
          interface: interfaceName,
          implementation: this.#implementation,
        });
      this.#isMakingTold = true;
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
      checkFiles: (step) => checkWgFiles(this.#options, step, wanted, configStamp),
      rememberLoopback: (address, ours) => this.#ownership.noteLoopback(address, ours),
      onDone: (step) => {
        if (step.kind === "add-link") this.#isMakingTold = false;
        log.debug("Applied a step", { step: step.kind });
      },
      ...(signal === undefined ? {} : { signal }),
    };
    const applied = await applySteps(steps, options);
    this.#model.drop();
    if (applied.left.length > 0) {
      return { ...applied, seen: applied.done.reduce((now, step) => foldStep(now, step, wanted), seen) };
    }
    // What the peers are now is found out here, where nobody waits for it: before the commands it would hold them up, beside
    // them take the processor that `wg` and wireguard-go need, and later the next change would wait for it.
    void plan.after.interface?.peers.size;
    this.#model.take(plan.after, this.#ownership.networks(wanted.clusterNets), generation);
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
    this.#model.drop();
    const seen = await this.#known(wanted, turn);
    const { steps, roaming: unsure } = planHost(wanted, seen, this.#remembered(wanted));
    if (steps.length === 0) return { seen, unheld: [], unsure };
    this.#model.drop();
    const { interfaceName, listenPort } = wanted;
    if (steps.some((step) => step.kind === "set-device" && step.listenPort !== undefined)) {
      return { seen, unheld: [portInUse(interfaceName, listenPort)], unsure };
    }
    const what = steps.map((step) => step.kind).join(", ");
    const message = `Cannot keep interface ${quote(interfaceName)} as wanted: changed again right after it was set (${what})`;
    return { seen, unheld: [{ kind: "apply-failed", message }], unsure };
  }

  #remembered(wanted: WantedHost, mesh: Pick<Remembered, "held" | "unsure"> = {}): Remembered {
    return {
      ...this.#ownership.of(wanted),
      ...mesh,
      // With `held` nobody asks.
      formerPeers: mesh.held === undefined ? this.#peers.formerPeers() : new Set(),
      endpoints: {
        ...this.#peers.endpoints(),
        quietMs: this.#reader.quietMs,
        nowSeconds: Math.floor(this.#options.clock.wallTime().getTime() / 1000),
      },
    };
  }

  /** The interface of an earlier run under another --interface: it holds the port and the prefixes. */
  async #removeFormerInterface(
    wanted: WantedHost,
    signal: AbortSignal | undefined,
    written: Promise<FileStamp | undefined> | undefined,
  ): Promise<Problem[]> {
    if (this.#ownership.formerName(wanted) === undefined) return [];
    await written;
    try {
      const turn = this.#begin(signal);
      const former = await this.#planFormerInterface(wanted, turn.run);
      if (former !== undefined) {
        const applied = await this.#carryOut(former.plan, wanted, former.seen, turn);
        this.#model.drop();
        if (applied.left.length > 0) return [...applied.problems];
      }
      await this.#ownership.forgetFormer(wanted);
      return [];
    } catch (error) {
      return [...unreadable(error).problems];
    }
  }

  /** The steps that take the interface of an earlier run away; undefined: there is none that is ours. */
  async #planFormerInterface(
    wanted: WantedHost,
    run: RunCommand,
  ): Promise<{ readonly name: string; readonly plan: HostPlan; readonly seen: SeenHost } | undefined> {
    const name = this.#ownership.formerName(wanted);
    if (name === undefined) return undefined;
    const { readUnixSockets } = this.#options;
    const owned = this.#ownership.of(wanted);
    const seen = await readHost({
      run,
      interfaceName: name,
      networks: this.#ownership.networks(wanted.clusterNets),
      ourKeys: owned.ourKeys,
      ...(readUnixSockets === undefined ? {} : { readUnixSockets }),
    });
    // A foreign interface of that name is nobody's business any more, nor is one that got our new name meanwhile.
    if (seen.interface?.name !== name) return undefined;
    const link = { interfaceName: name, clusterNets: [], publicKey: wanted.publicKey };
    const nothingElse = { ...owned, addedLoopback: new Set<string>(), formerClusterNets: [] };
    const plan = planDown(link, seen, nothingElse);
    return plan.steps.length === 0 ? undefined : { name, plan, seen };
  }
}

/** One reading and what is done upon it. */
interface Turn {
  /** The model's when it began. */
  readonly generation: number;
  /** Ends a program that hangs soon after `signal` aborts. */
  readonly run: RunCommand;
  readonly signal: AbortSignal | undefined;
}

function isStopping(signal: AbortSignal | undefined): boolean {
  return signal?.aborted === true;
}

/** What `down` wants of all that it does not name. */
const nothing = { listenPort: 0, mtu: 0, peers: [], loopbackAddresses: [], exact: true } as const;

/** Not only left out because there is no interface to load it into. */
function isConfigRefused(left: readonly Step[]): boolean {
  const isThere = !left.some(({ kind }) => kind === "add-link" || kind === "rename-link");
  return isThere && left.some(({ kind }) => kind === "sync-conf");
}

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

/** As it is seen once the link of this name is gone. */
function withoutLink({ interface: link, ...seen }: SeenHost, name: string): SeenHost {
  const routes = seen.routes.filter(({ device }) => device !== name);
  return { ...seen, routes, ...(link === undefined || link.name === name ? {} : { interface: link }) };
}

function unreadable(error: unknown): Pick<ApplyResult, "complete" | "done" | "problems"> {
  const hint = error instanceof ClusternetError && error.hint !== undefined ? ` (${error.hint})` : "";
  return {
    complete: false,
    done: [],
    problems: [{ kind: "apply-failed", message: `${messageOf(error)}${hint}` }],
  };
}
