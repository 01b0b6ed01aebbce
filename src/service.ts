/**
 * `Service`: the whole agent on one AbortSignal. The command line is a thin user of it.
 *
 * Starting takes the place (lock), the key, the last file and the host as they are, and changes nothing that is
 * right already; the Curator is called meanwhile. From then on pull and push work side by side and neither ends before
 * the signal aborts. Ending takes nothing away: interface, routes, file and announcement stay (C4.11).
 */
import { join, resolve } from "node:path";
import { begin, Bell, Value, systemClock, type Clock, type Watched } from "./async.ts";
import { checkOptions, defaultListenPort } from "./checks.ts";
import { rememberedCurator } from "./core/curators.ts";
import { renderStep } from "./core/host-commands.ts";
import type { SeenHost } from "./core/host-state.ts";
import { privateKeyFromBytes, secretForms, type PrivateKey, type PublicKey } from "./core/key.ts";
import { asNodeId, nodeIdProblem, type NodeId } from "./core/node.ts";
import type { Prefix } from "./core/prefix.ts";
import type { Problem } from "./core/problem.ts";
import { renderWgConfig } from "./core/wg-config.ts";
import type { CuratorFollower, StreamEvent } from "./curator/follower.ts";
import { ClusternetError, describeError, describeInLine, exitStatus, messageOf } from "./errors.ts";
import { createFollowCommand, createRunCommand, type RunCommand } from "./host/command.ts";
import { ensureDataDirectory, removeLeftovers, socketPath } from "./host/files.ts";
import { createHost, type LinuxHost } from "./host/host.ts";
import { ensureKeyFile, keyFileName, readKeyFile } from "./host/key-file.ts";
import { acquireLocks, type Locks } from "./host/lock.ts";
import { MeshFile, type LastMesh } from "./host/mesh-file.ts";
import { adoptFormerFiles, findFormerFiles, AgentMemory, StateFile, readBootId } from "./host/state-file.ts";
import { chooseImplementation, type Implementation } from "./host/wireguard-go.ts";
import { Housekeeping } from "./housekeeping.ts";
import { silentLogger, type RedactingLogger } from "./log.ts";
import {
  alwaysAnswered,
  followOwn,
  lastPodPrefixes,
  podNetworkToRemember,
  readOwn,
  type NetworkStatus,
  type Own,
  type OwnSources,
  type SourceState,
} from "./own.ts";
import type { Prefixes } from "./prefixes.ts";
import { ProblemLog } from "./problem-log.ts";
import { Pull, type PullState } from "./pull.ts";
import { Push } from "./push.ts";
import { collectGarbage, spareMemory } from "./spare-memory.ts";
import { buildStatus, fromFileRemark, type Status } from "./status.ts";
import { watchTimeOfDay } from "./time-watch.ts";
import { Tracker } from "./tracker.ts";
import { openKeyProblems } from "./trust/credentials.ts";
import { UnderlayFollower } from "./underlay.ts";
import { version } from "./version.ts";

/** What the Go package's Service is given, and what a host may want otherwise than Metropolis does. */
export interface ServiceOptions {
  /** Whom to follow and announce to (`createCurator`). */
  readonly curator: CuratorFollower;
  /** This node's ID, as the Curator knows it. */
  readonly nodeId: string;
  /** The network that is routed into the mesh; one per address family at most. */
  readonly clusterNet: string | Prefix | readonly (string | Prefix)[];
  /** Where the WireGuard key is kept, and the mesh. Made when absent. */
  readonly dataDirectory: string;
  /** Prefixes to be announced into the mesh, as they change. */
  readonly localKubernetesPodNetwork: Watched<Prefixes | undefined>;
  /**
   * How the source of the pod network is doing. Until it has answered, the pod prefixes of the run before are announced
   * besides, so that a restart withdraws nothing; its problems are reported. Default: what it gives is all there is.
   */
  readonly podNetworkState?: Watched<SourceState>;
  /** This node's external address, as it changes; "auto": the source address of the route towards the Curator. */
  readonly network: Watched<NetworkStatus | undefined> | "auto";

  /** Default "clusternet". */
  readonly interfaceName?: string;
  /** UDP port, also assumed for every peer. Default 7838. */
  readonly listenPort?: number;
  /** Default "auto": MTU of the underlay less 80. */
  readonly mtu?: number | "auto";
  /** Default "auto": the kernel's where it has WireGuard. */
  readonly wireguard?: Implementation | "auto";
  /** PersistentKeepalive of every peer. Default: none. */
  readonly keepaliveSeconds?: number;
  /** How often the host is compared with what is wanted. Default 30. */
  readonly resyncSeconds?: number;
  /** Default "auto": when the Curator has missed a status for 10 s. */
  readonly reportStatus?: "auto" | "on" | "off";
  /** HOST:PORT of the Curators, for "auto" before one is connected. */
  readonly curatorAddresses?: readonly string[];
  readonly log?: RedactingLogger;
  readonly clock?: Clock;
}

/** What a run would do (`--dry-run`). */
export interface Preview {
  /** The file of the mesh, the private key hidden. */
  readonly text: string;
  /** The commands of the steps, as they would be typed. */
  readonly commands: readonly string[];
  readonly problems: readonly Problem[];
}

const defaultResyncSeconds = 30;
/** A host that takes longer to be read (`wg` hangs) is told of as it was last seen: who asks waits 2 s (commands/status.ts). */
const statusReadMs = 1_000;
/** Longer without a turn of its loop, and the agent says that it is not healthy. */
const healthyTurnMs = 60_000;

/** Everything that one run has opened. */
interface Session {
  readonly key: PrivateKey;
  readonly locks: Locks;
  readonly host: LinuxHost;
  readonly memory: AgentMemory;
  readonly own: Value<Own>;
  readonly sources: OwnSources;
  readonly underlay: UnderlayFollower;
  readonly pull: Pull;
  readonly push: Push;
  readonly housekeeping: Housekeeping;
  readonly startedAt: Date;
}

export class Service {
  readonly #options: ServiceOptions;
  readonly #self: NodeId;
  readonly #clusterNets: readonly Prefix[];
  readonly #interfaceName: string;
  readonly #listenPort: number;
  readonly #log: RedactingLogger;
  readonly #clock: Clock;
  readonly #problems: ProblemLog;
  #session: Session | undefined;

  /** Throws ClusternetError for an option that cannot be: what the command line refuses, this refuses too. */
  constructor(options: ServiceOptions) {
    const self = asNodeId(options.nodeId);
    if (self === undefined) throw new ClusternetError(nodeIdProblem(options.nodeId));
    this.#clusterNets = checkOptions(options);
    // `wg` and `ip` run in another directory than this program may.
    this.#options = { ...options, dataDirectory: resolve(options.dataDirectory) };
    this.#self = self;
    this.#interfaceName = options.interfaceName ?? "clusternet";
    this.#listenPort = options.listenPort ?? defaultListenPort;
    this.#log = options.log ?? silentLogger;
    this.#clock = options.clock ?? systemClock;
    this.#problems = new ProblemLog(this.#log, this.#clock);
  }

  /**
   * Runs until `signal` aborts. Throws before anything was changed when the place is taken, the key cannot be used
   * or the host has no WireGuard; after that nothing but a bug ends it.
   */
  async run(signal: AbortSignal): Promise<void> {
    // One loop that ends by a bug must end the others, or the agent would live on half.
    const broken = new AbortController();
    const until = AbortSignal.any([signal, broken.signal]);
    const session = await this.#open(until).catch((error: unknown) => {
      broken.abort();
      throw error;
    });
    this.#session = session;
    const loops = [
      session.pull.run(until),
      session.push.run(until),
      followOwn(this.#ownSettings(session.key.publicKey), session.sources, session.own, until),
      session.underlay.run(until),
      session.housekeeping.run(until),
      watchTimeOfDay({ clock: this.#clock, log: this.#log }, until),
      this.#watchHost(session, until),
      this.#watchProblems(session, until),
      this.#learnCurators(session, until),
      spareMemory({ state: session.pull.state, clock: this.#clock, collect: collectGarbage }, until),
      this.#rememberPodPrefixes(session, until),
    ].map(async (loop) => {
      try {
        await loop;
      } catch (error) {
        broken.abort();
        throw error;
      }
    });
    // Until all have ended: the place is not given free while one still writes.
    const ends = await Promise.allSettled(loops);
    this.#session = undefined;
    session.locks.release();
    const bug = ends.find((end) => end.status === "rejected");
    if (bug !== undefined) throw bug.reason;
  }

  /**
   * Runs until a full picture has been written and applied and this node's announcement accepted. Throws
   * ClusternetError with exit 69 when the UDP port is taken, with exit 75 when `timeoutMs` run out.
   */
  async runOnce(timeoutMs: number, signal: AbortSignal): Promise<void> {
    const stop = new AbortController();
    const until = AbortSignal.any([signal, stop.signal]);
    const running = this.run(until);
    const ended = running.then(
      () => undefined,
      () => undefined,
    );
    let failure: ClusternetError | undefined;
    const bell = new Bell();
    const finish = (async (): Promise<void> => {
      const endMs = this.#clock.nowMs() + timeoutMs;
      while (!until.aborted) {
        const missing = this.#missingOfOnce();
        if (missing.length === 0) return;
        const taken = this.#problems.current().find(({ kind }) => kind === "port-in-use");
        if (taken !== undefined) {
          failure = new ClusternetError(taken.message, { exit: exitStatus.unavailable });
          return;
        }
        if (this.#clock.nowMs() >= endMs) {
          failure = new ClusternetError(
            `Cannot finish within ${timeoutMs / 1000} s: ${[...missing, ...this.#problems.current().map(({ message }) => message)].join("; ")}`,
            { exit: exitStatus.temporary },
          );
          return;
        }
        // The loops change too much in too many places to ring a bell in each; a look now and then is cheap.
        await bell.wait(Math.min(20, endMs - this.#clock.nowMs()), until, this.#clock);
      }
    })();
    await Promise.race([finish, ended]);
    stop.abort();
    await running;
    if (failure !== undefined) throw failure;
  }

  /**
   * What a run would do now, without doing any of it: waits for a full picture, and the source of the pod prefixes, and
   * compares. Takes no place, makes no
   * key (one that is missing is made up for the comparison), so it works beside a running agent. Throws
   * ClusternetError with exit 75 when `timeoutMs` run out.
   */
  async preview(timeoutMs: number, signal: AbortSignal): Promise<Preview> {
    const run = createRunCommand();
    const { wireguard = "auto" } = this.#options;
    const found = await readKeyFile(join(this.#options.dataDirectory, keyFileName));
    const key = found?.key ?? privateKeyFromBytes(crypto.getRandomValues(new Uint8Array(32)));
    for (const form of secretForms(key)) this.#log.redact(form);
    // A run would give these files its own name first.
    const former = await findFormerFiles(this.#options.dataDirectory, this.#interfaceName);
    const file = new MeshFile(this.#path("conf", former));
    const last = await file.read(key.publicKey, { closeToOthers: false });
    const memory = await this.#remember({ write: false, former });
    const ourKeys = new Set([key.publicKey]);
    learnKeyOf(last, ourKeys);
    const host = this.#createHost(run, ourKeys, memory);
    const seenFirst = await this.#unlessItMayPass(host.read());
    const underlay = this.#createUnderlay(run);
    await underlay.read();
    const { pull, own, sources } = this.#wire(key, host, file, { last, memory, seen: seenFirst, underlay });
    await Promise.all([
      pull.hear(timeoutMs, signal),
      hearSource(sources.podNetworkState, timeoutMs, signal, this.#clock),
    ]);
    own.set(readOwn(this.#ownSettings(key.publicKey), sources));
    const { wanted, problems } = pull.wanted();
    // As a run would: it writes the file first.
    const planned = await host.plan({ ...wanted, configWritten: true });
    const { credentials } = this.#options.curator;
    const { listenPort, keepaliveSeconds } = wanted;
    const keepalive = keepaliveSeconds === undefined ? {} : { keepaliveSeconds };
    return {
      text: renderWgConfig({ listenPort, mesh: { peers: wanted.peers }, ...keepalive }, undefined),
      commands: planned.done.map((step) =>
        renderStep(step, {
          keyFile: join(this.#options.dataDirectory, keyFileName),
          configFile: this.#path("conf"),
          // With "auto" and no interface only making a link would tell, and nothing is made here.
          implementation:
            planned.seen?.interface?.implementation ?? (wireguard === "auto" ? "kernel" : wireguard),
          plusAllowedIps: false,
        }),
      ),
      problems: [
        ...(last.kind === "none" ? [] : last.problems),
        ...(credentials === undefined ? [] : await openKeyProblems(credentials.key)),
        ...own.get().problems,
        ...problems,
        ...planned.problems,
      ],
    };
  }

  /** What `/status` answers. */
  async status(): Promise<Status> {
    const session = this.#session;
    const read = await this.#readHost(session);
    // All of one moment, after the wait.
    const state = session?.pull.state.get();
    const pushed = session?.push.state.get();
    const own = session?.own.get();
    const seen = read ?? state?.seen;
    return buildStatus({
      version,
      agent: {
        running: session !== undefined,
        pid: process.pid,
        ...(session === undefined ? {} : { startedAt: session.startedAt }),
        notReady: this.notReady(),
        remarks: this.remarks(),
        unhealthy: this.unhealthy(),
      },
      node: {
        id: this.#self,
        announced: pushed?.announced?.prefixes ?? [],
        ...(session === undefined ? {} : { publicKey: session.key.publicKey }),
        ...(own?.externalAddress === undefined ? {} : { externalAddress: own.externalAddress }),
        ...(pushed?.announcedAt === undefined ? {} : { announcedAt: pushed.announcedAt }),
      },
      curator: this.#options.curator.state.get(),
      ...(state?.source === undefined ? {} : { source: state.source }),
      ...(state?.sourceAt === undefined ? {} : { sourceAt: state.sourceAt }),
      interfaceName: this.#interfaceName,
      ...(seen?.interface === undefined ? {} : { interface: seen.interface }),
      isHostUnseen: seen === undefined,
      mesh: session?.pull.mesh ?? { peers: [] },
      listenPort: this.#listenPort,
      problems: this.#problems.current(),
      now: this.#clock.wallTime(),
    });
  }

  /** What is missing, in words, until a mesh is applied; empty: ready. */
  notReady(): readonly string[] {
    const state = this.#session?.pull.state.get();
    if (state === undefined) return ["the agent is starting"];
    if (state.applied) return [];
    const blocking = this.#problems
      .current()
      .filter(({ kind }) => ["port-in-use", "interface-foreign", "apply-failed"].includes(kind))
      .map(({ message }) => message);
    if (blocking.length > 0) return blocking;
    return ["no mesh has been applied yet, neither that of the last file nor a full picture of a Curator"];
  }

  /** What is to be known of an agent that is ready, in words: that its mesh is still the one of the last file. */
  remarks(): readonly string[] {
    const state = this.#session?.pull.state.get();
    if (state?.applied !== true || state.source !== "file" || state.sourceAt === undefined) return [];
    return [fromFileRemark(state.sourceAt, this.#clock.wallTime())];
  }

  /** What hangs, in words; empty: every loop has turned within the last minute. */
  unhealthy(): readonly string[] {
    const session = this.#session;
    if (session === undefined) return ["the agent is starting"];
    const loops = {
      "the mesh": session.pull.lastTurnMs,
      "the announcement": session.push.lastTurnMs,
      "the underlay": session.underlay.lastTurnMs,
      "the data directory": session.housekeeping.lastTurnMs,
    };
    return Object.entries(loops).flatMap(([what, lastTurnMs]) => {
      const sinceMs = this.#clock.nowMs() - lastTurnMs;
      return sinceMs > healthyTurnMs
        ? [`${what} was last looked at ${Math.round(sinceMs / 1000)} s ago`]
        : [];
    });
  }

  /** The Curator is followed from here on, until `signal` aborts, so that its picture comes while this host is read. */
  async #open(signal: AbortSignal): Promise<Session> {
    const { dataDirectory, wireguard = "auto" } = this.#options;
    const startedAt = this.#clock.wallTime();
    socketPath(dataDirectory, this.#interfaceName);
    await ensureDataDirectory(dataDirectory);
    const locks = acquireLocks({
      dataDirectory,
      interfaceName: this.#interfaceName,
      clusterNets: this.#clusterNets.map(({ text }) => text),
    });
    try {
      const run = createRunCommand();
      const keyPath = join(dataDirectory, keyFileName);
      // Before a key is made: a host that cannot run this is left as it was.
      if ((await readKeyFile(keyPath)) === undefined) {
        await this.#unlessItMayPass(chooseImplementation({ run, wireguard }));
      }
      const { key, made, problems } = await ensureKeyFile(keyPath);
      for (const form of secretForms(key)) this.#log.redact(form);
      if (made) this.#log.info("Made a private key", { publicKey: key.publicKey });
      await removeLeftovers(dataDirectory).catch((error: unknown) => {
        this.#log.debug("Cannot remove what a crash may have left in the data directory", {
          error: messageOf(error),
        });
      });
      await this.#adoptFormerFiles();
      this.#problems.replace("key", problems);
      const memory = await this.#remember({ write: true });
      const events = begin(this.#options.curator.follow(signal));
      const ourKeys = new Set([key.publicKey]);
      const host = this.#createHost(run, ourKeys, memory);
      const file = new MeshFile(this.#path("conf"));
      const underlay = this.#createUnderlay(run);
      const [last, seenFirst] = await Promise.all([
        file.read(key.publicKey),
        this.#unlessItMayPass(host.readFirst()),
        underlay.read(),
      ]);
      this.#problems.replace("last-file", last.kind === "none" ? [] : last.problems);
      const seen = learnKeyOf(last, ourKeys) ? await this.#unlessItMayPass(host.readFirst()) : seenFirst;
      // An interface that is there tells what it uses; trying it out would make and delete a link. On a host that could
      // not be read nothing is tried: the first apply does, and tries again.
      const implementation =
        seen === undefined
          ? undefined
          : (seen.interface?.implementation ??
            (await this.#unlessItMayPass(chooseImplementation({ run, wireguard }))));
      this.#log.info("Agent starts", {
        version,
        node: this.#self,
        publicKey: key.publicKey,
        interface: this.#interfaceName,
        wireguard: implementation ?? "unknown yet",
      });
      const housekeeping = new Housekeeping(
        {
          dataDirectory,
          interfaceName: this.#interfaceName,
          key,
          credentials: this.#options.curator.credentials,
          resyncMs: (this.#options.resyncSeconds ?? defaultResyncSeconds) * 1000,
        },
        {
          locks,
          memory,
          handlers: {
            status: () => this.status(),
            unhealthy: () => this.unhealthy(),
            notReady: () => this.notReady(),
            remarks: () => this.remarks(),
          },
          problems: this.#problems,
          log: this.#log,
          clock: this.#clock,
        },
      );
      const wired = this.#wire(key, host, file, { last, memory, seen, underlay, events });
      return { startedAt, key, locks, host, memory, housekeeping, underlay, ...wired };
    } catch (error) {
      locks.release();
      throw error;
    }
  }

  /** An earlier run may have had another --interface: what it has left is taken away, and its mesh gone on with. */
  async #adoptFormerFiles(): Promise<void> {
    try {
      const former = await adoptFormerFiles(this.#options.dataDirectory, this.#interfaceName);
      if (former !== undefined) this.#log.info("The interface has another name now", { former });
    } catch (error) {
      // A disk that cannot be written, say: the start goes on without.
      this.#log.warn(describeError(error));
    }
  }

  /** What earlier runs have left to remember; the Curators among it are tried from here on. */
  async #remember({
    write,
    former,
  }: {
    readonly write: boolean;
    readonly former?: string | undefined;
  }): Promise<AgentMemory> {
    const file = new StateFile(this.#path("state", former), await readBootId());
    const state = await file.read(this.#log, { closeToOthers: write });
    this.#options.curator.learn(
      state.learnedCurators.flatMap((each) => rememberedCurator(each, this.#clusterNets) ?? []),
    );
    return new AgentMemory(state, write ? file : undefined);
  }

  #createHost(run: RunCommand, ourKeys: ReadonlySet<PublicKey>, memory: AgentMemory): LinuxHost {
    return createHost({
      run,
      follow: createFollowCommand(),
      interfaceName: this.#interfaceName,
      keyFile: join(this.#options.dataDirectory, keyFileName),
      configFile: this.#path("conf"),
      wireguard: this.#options.wireguard ?? "auto",
      memory,
      ourKeys,
      log: this.#log,
      clock: this.#clock,
    });
  }

  #wire(
    key: PrivateKey,
    host: LinuxHost,
    file: MeshFile,
    {
      last,
      memory,
      seen,
      underlay,
      events,
    }: {
      readonly last: LastMesh;
      readonly memory: AgentMemory;
      readonly seen: SeenHost | undefined;
      readonly underlay: UnderlayFollower;
      readonly events?: AsyncIterable<StreamEvent>;
    },
  ): Pick<Session, "own" | "sources" | "pull" | "push"> {
    const { curator, network, localKubernetesPodNetwork: podNetwork, keepaliveSeconds } = this.#options;
    const { reportStatus = "auto", resyncSeconds = defaultResyncSeconds } = this.#options;
    const shared = { problems: this.#problems, log: this.#log, clock: this.#clock };
    const podNetworkState = this.#options.podNetworkState ?? new Value(alwaysAnswered);
    const sources: OwnSources = {
      podNetwork,
      podNetworkState,
      lastPodPrefixes: lastPodPrefixes(memory.get().podNetwork, podNetworkState.get()),
      network: network === "auto" ? underlay.network : network,
      mtu: underlay.mtu,
    };
    const own = new Value(readOwn(this.#ownSettings(key.publicKey), sources));
    const tracker = new Tracker({
      self: this.#self,
      fromFile: last.kind === "mesh" ? last.nodes : [],
      complete: isComplete(seen, last),
    });
    const pull = new Pull(
      {
        interfaceName: this.#interfaceName,
        privateKey: key,
        listenPort: this.#listenPort,
        clusterNets: this.#clusterNets,
        resyncMs: resyncSeconds * 1000,
        ...(keepaliveSeconds === undefined ? {} : { keepaliveSeconds }),
        keepFile: last.kind === "unusable",
        ...(last.kind === "mesh" ? { fileTime: last.writtenAt } : {}),
        ...(seen === undefined ? {} : { seen }),
      },
      { tracker, curator, ...(events === undefined ? {} : { events }), host, file, own, ...shared },
    );
    const push = new Push(
      { self: this.#self, reportStatus },
      { own, pull: pull.state, connection: curator.connection, ...shared },
    );
    return { own, sources, pull, push };
  }

  #createUnderlay(run: RunCommand): UnderlayFollower {
    const { curator, network, mtu = "auto", resyncSeconds = defaultResyncSeconds } = this.#options;
    return new UnderlayFollower(
      {
        clusterNets: this.#clusterNets,
        interfaceName: this.#interfaceName,
        mtu,
        announcesAddress: network === "auto",
        curatorAddresses: this.#options.curatorAddresses ?? [],
        resyncMs: resyncSeconds * 1000,
      },
      { run, curator, clock: this.#clock, log: this.#log },
    );
  }

  /**
   * What the start finds out of this host. Throws what tells that something is missing (exit 69); undefined for a
   * failure that may pass, which is reported until the first apply knows better.
   */
  async #unlessItMayPass<T>(found: Promise<T>): Promise<T | undefined> {
    try {
      return await found;
    } catch (error) {
      if (!(error instanceof ClusternetError) || error.exit === exitStatus.unavailable) throw error;
      this.#problems.replace("host", [{ kind: "apply-failed", message: describeInLine(error) }]);
      return undefined;
    }
  }

  #ownSettings(publicKey: PublicKey) {
    return { self: this.#self, publicKey, clusterNets: this.#clusterNets };
  }

  #path(ending: "conf" | "state", interfaceName = this.#interfaceName): string {
    return join(this.#options.dataDirectory, `${interfaceName}.${ending}`);
  }

  /** The kernel's hints are for all who look at the host. */
  async #watchHost({ host, pull, underlay }: Session, signal: AbortSignal): Promise<void> {
    for await (const hint of host.hints(signal, () => underlay.devices)) {
      if (hint.mesh) pull.hint();
      if (hint.underlay) underlay.hint();
    }
  }

  async #watchProblems({ own }: Session, signal: AbortSignal): Promise<void> {
    const ofCurator = async (): Promise<void> => {
      for await (const problems of this.#options.curator.problems.watch(signal)) {
        this.#problems.replace("curator", problems);
      }
    };
    const ofOwn = async (): Promise<void> => {
      for await (const { problems } of own.watch(signal)) this.#problems.replace("own", problems);
    };
    await Promise.all([ofCurator(), ofOwn()]);
  }

  /** Curators that the cluster names are a help for the next start too (C2). */
  async #learnCurators({ pull, memory }: Session, signal: AbortSignal): Promise<void> {
    let learned: PullState["curators"] = [];
    for await (const { curators } of pull.state.watch(signal)) {
      if (curators === learned || curators.length === 0) continue;
      learned = curators;
      this.#options.curator.learn(curators);
      try {
        await memory.learn(curators);
        this.#log.debug("Learned the Curators of the cluster", { count: curators.length });
      } catch (error) {
        // It is written with the next change of anything that is remembered; until then only the help is missing.
        this.#log.warn("Cannot remember the Curators of the cluster", { error: describeError(error) });
      }
    }
  }

  /** What a source has said is for a restart too, before it says it again. One that always knows needs no memory. */
  async #rememberPodPrefixes({ sources, memory }: Session, signal: AbortSignal): Promise<void> {
    const { podNetworkState: state, localKubernetesPodNetwork: podNetwork } = this.#options;
    const remember = async (): Promise<void> => {
      if (!sources.podNetworkState.get().answered) return;
      const next = state === undefined ? undefined : podNetworkToRemember(podNetwork.get(), state.get());
      if (Bun.deepEquals(next, memory.get().podNetwork)) return;
      try {
        await memory.rememberPodNetwork(next);
      } catch (error) {
        // Housekeeping tries again; the agent itself knows them.
        this.#log.warn("Cannot remember the pod prefixes of this node", { error: describeError(error) });
      }
    };
    const follow = async (source: Watched<unknown>): Promise<void> => {
      for await (const _changed of source.watch(signal)) await remember();
    };
    await Promise.all([follow(podNetwork), follow(sources.podNetworkState)]);
  }

  #missingOfOnce(): readonly string[] {
    const session = this.#session;
    if (session === undefined) return ["the agent is starting"];
    const { heardOut, holds } = session.pull.state.get();
    return [
      ...(session.sources.podNetworkState.get().answered ? [] : [sourceIsSilent]),
      ...(heardOut ? [] : ["no full picture has come from a Curator"]),
      ...(holds ? [] : ["the mesh is not applied"]),
      // The host is as wanted without them, but what comes after this run relies on them.
      ...(this.#problems.current().some(({ kind }) => kind === "file-unwritable")
        ? ["not every file could be written"]
        : []),
      ...(session.push.isSettled ? [] : ["the announcement has not been accepted"]),
    ];
  }

  async #readHost(session: Session | undefined): Promise<SeenHost | undefined> {
    const done = new AbortController();
    try {
      const late = this.#clock.sleep(statusReadMs, done.signal).then(() => undefined);
      return await Promise.race([session?.host.read(), late]);
    } catch (error) {
      // The status answers all the same, with what was seen last.
      this.#log.debug("Cannot read this host for the status", { error: messageOf(error) });
      return undefined;
    } finally {
      done.abort();
    }
  }
}

/** Waits until the source has said something. Throws ClusternetError with exit 75 when `timeoutMs` run out first. */
async function hearSource(
  state: Watched<SourceState>,
  timeoutMs: number,
  signal: AbortSignal,
  clock: Clock,
): Promise<void> {
  const heard = new AbortController();
  const until = AbortSignal.any([signal, heard.signal]);
  const late = clock.sleep(timeoutMs, until).then(() => heard.abort());
  for await (const { answered } of state.watch(until)) if (answered) heard.abort();
  await late;
  const { answered, problems } = state.get();
  if (answered || signal.aborted) return;
  const reasons = [sourceIsSilent, ...problems.map(({ message }) => message)];
  throw new ClusternetError(
    `Cannot know this node's pod prefixes within ${timeoutMs / 1000} s: ${reasons.join("; ")}`,
    {
      exit: exitStatus.temporary,
    },
  );
}

const sourceIsSilent = "the source of this node's pod prefixes has not answered";

/** Adds the key that the file was written for: an interface that has it is ours (C4.11). False: it is known. */
function learnKeyOf(last: LastMesh, ourKeys: Set<PublicKey>): boolean {
  if (last.kind === "none" || last.publicKey === undefined || ourKeys.has(last.publicKey)) return false;
  ourKeys.add(last.publicKey);
  return true;
}

/**
 * True when the interface has no peer that the last file does not name: then nothing that a Curator may still name is
 * removed by what is not wanted (C4.8). A file can be older than the interface, when it could not be written. Of a host
 * that could not be read the careful answer is no.
 */
function isComplete(seen: SeenHost | undefined, last: LastMesh): boolean {
  if (seen === undefined) return false;
  const named = new Set<string>(last.kind === "mesh" ? last.nodes.map(({ publicKey }) => publicKey) : []);
  return [...(seen.interface?.peers.keys() ?? [])].every((publicKey) => named.has(publicKey));
}
