/**
 * The file `<interface>.state`: what else a restart must know (C3). Losing it harms nothing but that.
 *
 * So a file that cannot be read or understood is logged and taken for empty, and the next write replaces it. The
 * loopback addresses count only in the boot in which they were added: after a reboot, an address of that
 * text on `lo` is somebody else's.
 */
import { readdir, readFile, rename } from "node:fs/promises";
import { join } from "node:path";
import * as v from "valibot";
import { Bell } from "../async.ts";
import {
  parseAddress,
  parseInterfacePrefix,
  parsePrefix,
  type Address,
  type Prefix,
} from "../core/prefix.ts";
import { quote, quotePath } from "../core/problem.ts";
import { ClusternetError, isSystemError, messageOf, systemReason } from "../errors.ts";
import type { Logger } from "../log.ts";
import { KeptFile, type LookOptions } from "./files.ts";

/** What is remembered of earlier runs. */
export interface AgentState {
  /** Added to `lo` by this program and not taken away since. */
  readonly loopbackAddresses: readonly Address[];
  readonly clusterNets: readonly Prefix[];
  readonly interfaceName?: string;
  readonly listenPort?: number;
  /** Curators that the cluster named, as they were written. */
  readonly learnedCurators: readonly RememberedCurator[];
  /** What a source of pod prefixes said last. */
  readonly podNetwork: RememberedPodNetwork | undefined;
}

/** What one source of pod prefixes has given. */
export interface RememberedPodNetwork {
  /** Which one: what it gave is of no use for another. */
  readonly source: string;
  /** Host bits are kept, as there. */
  readonly prefixes: readonly Prefix[];
}

/** A node's ID and HOST:PORT; not checked yet when it comes from the file. */
export interface RememberedCurator {
  readonly nodeId: string;
  readonly address: string;
}

export const emptyState: AgentState = {
  loopbackAddresses: [],
  clusterNets: [],
  learnedCurators: [],
  podNetwork: undefined,
};

/** Some hundred addresses at most: anything longer is not ours. */
const maxStateFileBytes = 16 * 1024 * 1024;

const stateSchema = v.object({
  version: v.literal(1),
  bootId: v.string(),
  loopbackAddresses: v.array(v.string()),
  clusterNets: v.array(v.string()),
  interfaceName: v.optional(v.pipe(v.string(), v.regex(/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}$/))),
  listenPort: v.optional(v.pipe(v.number(), v.integer(), v.minValue(1), v.maxValue(65_535))),
  // A list of another form costs that help alone.
  learnedCurators: v.fallback(v.array(v.object({ nodeId: v.string(), address: v.string() })), []),
  podNetwork: v.optional(v.object({ source: v.string(), prefixes: v.array(v.string()) })),
});

/** Changes at every boot of the machine, and only then. */
export async function readBootId(): Promise<string> {
  return (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
}

/** Those of an interface that this program keeps, the one that says most last. */
const endings = ["conf", "state"];

/**
 * Gives the files of an interface that an earlier run had under another name to this one, when it has no state of its
 * own yet: its last mesh, and what it has left on the host, the former interface among it. Returns the former name,
 * undefined when there is none. Call it only while holding the directory's lock. Throws ClusternetError.
 */
export async function adoptFormerFiles(
  directory: string,
  interfaceName: string,
): Promise<string | undefined> {
  try {
    const names = new Set(await readdir(directory));
    const former = formerOf(names, interfaceName);
    if (former === undefined) return undefined;
    for (const ending of endings) {
      const [from, to] = [`${former}.${ending}`, `${interfaceName}.${ending}`];
      if (names.has(from) && !names.has(to)) await rename(join(directory, from), join(directory, to));
    }
    return former;
  } catch (error) {
    throw unfound(directory, error);
  }
}

/** The name that `adoptFormerFiles` would return, changing nothing. Throws ClusternetError. */
export async function findFormerFiles(directory: string, interfaceName: string): Promise<string | undefined> {
  try {
    return formerOf(new Set(await readdir(directory)), interfaceName);
  } catch (error) {
    if (isSystemError(error, "ENOENT")) return undefined;
    throw unfound(directory, error);
  }
}

function formerOf(names: ReadonlySet<string>, interfaceName: string): string | undefined {
  if (names.has(`${interfaceName}.state`)) return undefined;
  return [...names]
    .flatMap((name) => /^([^.].*)\.state$/.exec(name)?.[1] ?? [])
    .toSorted()
    .at(-1);
}

function unfound(directory: string, error: unknown): ClusternetError {
  return new ClusternetError(
    `Cannot find what runs under another interface name left in ${quotePath(directory)}: ${systemReason(error)}`,
    { cause: error },
  );
}

/** The state file of one interface, in this boot. Knows what it last read or wrote, so that nothing is written twice. */
export class StateFile {
  readonly path: string;
  readonly #bootId: string;
  readonly #file: KeptFile;

  constructor(path: string, bootId: string) {
    this.path = path;
    this.#bootId = bootId;
    this.#file = new KeptFile(path);
  }

  /** What is remembered; empty when there is no file. Never throws for what the file holds: that is logged. */
  async read(logger: Logger, options: LookOptions = {}): Promise<AgentState> {
    try {
      const file = await this.#file.read(maxStateFileBytes, options);
      return file === undefined ? emptyState : parseState(file.text, this.#bootId);
    } catch (error) {
      if (!(error instanceof ClusternetError)) throw error;
      logger.warn("State file cannot be used, going on without what it remembered", {
        file: this.path,
        reason: messageOf(error),
      });
      return emptyState;
    }
  }

  /** Remembers all of it, atomically. False: it is remembered already. Throws ClusternetError. */
  async write(state: AgentState): Promise<boolean> {
    const { isNew } = await this.#file.write(renderState(state, this.#bootId));
    return isNew;
  }
}

/**
 * What is remembered, for those who each change their part of it: the host what it has done, the agent which Curators
 * it has learned, and which pod network its source gave. Only one writes at a time. Without a file it is remembered as
 * long as the program runs.
 */
export class AgentMemory {
  /** Rings when a change could not be written: for whoever calls `keep` until it is. */
  readonly unwritten = new Bell();
  #isBehind = false;
  #state: AgentState;
  readonly #file: StateFile | undefined;
  #writing: Promise<unknown> = Promise.resolve();

  constructor(state: AgentState, file?: StateFile) {
    this.#state = state;
    this.#file = file;
  }

  get(): AgentState {
    return this.#state;
  }

  /** The file does not hold what is remembered: the last write failed. */
  get isBehind(): boolean {
    return this.#isBehind;
  }

  /** Remembers what the host has done. Throws ClusternetError when it cannot be written. */
  async set(next: Omit<AgentState, "learnedCurators" | "podNetwork">): Promise<void> {
    const { learnedCurators, podNetwork } = this.#state;
    this.#state = { ...next, learnedCurators, podNetwork };
    await this.#writeChange();
  }

  /** Remembers these Curators instead of those of before. Throws ClusternetError when it cannot be written. */
  async learn(curators: readonly RememberedCurator[]): Promise<void> {
    this.#state = { ...this.#state, learnedCurators: curators };
    await this.#writeChange();
  }

  /** Remembers this pod network instead of that of before. Throws ClusternetError when it cannot be written. */
  async rememberPodNetwork(podNetwork: RememberedPodNetwork | undefined): Promise<void> {
    this.#state = { ...this.#state, podNetwork };
    await this.#writeChange();
  }

  /** Writes what could not be written before, and the file when it has gone. Throws ClusternetError. */
  async keep(): Promise<void> {
    await this.#write();
  }

  async #writeChange(): Promise<void> {
    try {
      await this.#write();
    } catch (error) {
      this.unwritten.poke();
      throw error;
    }
  }

  async #write(): Promise<void> {
    const turn = this.#writing.then(() => this.#file?.write(this.#state));
    // A failure is told to whoever asked for this write; the next one is not hindered by it.
    this.#writing = turn.then(
      () => void (this.#isBehind = false),
      () => void (this.#isBehind = true),
    );
    await this.#writing;
    await turn;
  }
}

function renderState(state: AgentState, bootId: string): string {
  const { podNetwork } = state;
  const file: v.InferInput<typeof stateSchema> = {
    version: 1,
    bootId,
    loopbackAddresses: state.loopbackAddresses.map((address) => address.text),
    clusterNets: state.clusterNets.map((prefix) => prefix.text),
    interfaceName: state.interfaceName,
    listenPort: state.listenPort,
    learnedCurators: state.learnedCurators.map(({ nodeId, address }) => ({ nodeId, address })),
    podNetwork: podNetwork && {
      source: podNetwork.source,
      prefixes: podNetwork.prefixes.map((prefix) => prefix.text),
    },
  };
  return `${JSON.stringify(file, undefined, 2)}\n`;
}

function parseState(text: string, bootId: string): AgentState {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (error) {
    throw new ClusternetError("it is not JSON", { cause: error });
  }
  const result = v.safeParse(stateSchema, json);
  if (!result.success) {
    const [issue] = result.issues;
    // Not the issue's message: it shows the value as it is, and a log line must not hold what nobody wrote.
    const where = quote(v.getDotPath(issue) ?? "");
    throw new ClusternetError(`field ${where} is missing or wrong`);
  }
  const { output } = result;
  const { interfaceName, listenPort, podNetwork } = output;
  return {
    loopbackAddresses: output.bootId === bootId ? output.loopbackAddresses.map(parseAddress) : [],
    clusterNets: output.clusterNets.map(parsePrefix),
    ...(interfaceName === undefined ? {} : { interfaceName }),
    ...(listenPort === undefined ? {} : { listenPort }),
    learnedCurators: output.learnedCurators,
    podNetwork: podNetwork && {
      source: podNetwork.source,
      prefixes: podNetwork.prefixes.map(parseInterfacePrefix),
    },
  };
}
