/**
 * One agent per data directory, and one per interface, and per ClusterNet, in a network namespace (C3).
 *
 * The directory is held by flock(2) on a descriptor of it, which works on a read-only disk too and leaves no file
 * behind; interface and ClusterNets by the names of abstract Unix sockets, which belong to the network namespace as
 * interfaces and routes do. The kernel frees all when the process ends, however it ends, and neither is inherited by the
 * programs that it starts. A socket is bound but never listens: nobody can connect to it, so nobody can disturb it.
 *
 * Who holds a place is looked up by holder.ts, which may see no process where there is one.
 */
import { closeSync, constants, fstatSync, openSync } from "node:fs";
import type { Clock } from "../async.ts";
import { isInterfaceName } from "../checks.ts";
import { quote, quotePath } from "../core/problem.ts";
import { ClusternetError, SettingsError, exitStatus, systemHint, systemReason } from "../errors.ts";
import {
  describeHolder,
  findDirectoryHolder,
  findLockHolder,
  findSocketHolder,
  heldDirectoryOf,
  isPassing,
  isSameFile,
  statOf,
  unixSockets,
  type Holder,
} from "./holder.ts";
import { openLibc } from "./libc.ts";

/** Another process holds the place: exit 75. */
class PlaceHeldError extends ClusternetError {
  override readonly name = "PlaceHeldError";
  /** It is worth another look: the holder is being ended, or cannot be seen. */
  readonly isPassing: boolean;

  constructor(
    message: string,
    { holder, hint }: { readonly holder: Holder | undefined; readonly hint: string },
  ) {
    super(message, { hint, exit: exitStatus.temporary });
    this.isPassing = isPassing(holder);
  }
}

/** What one agent alone may hold. */
export interface Places {
  readonly dataDirectory: string;
  readonly interfaceName: string;
}

/** What an agent that works holds besides: two of them would put each its own route in the place of the other's. */
export interface AgentPlaces extends Places {
  /** Texts of the networks that it routes. Default: none, as for a program that only takes away. */
  readonly clusterNets?: readonly string[];
}

/** What to do about another process that holds a place; default: as whoever comes second with a mesh of its own. */
export interface PlaceRemedies {
  /** Of a data directory. */
  readonly directory: string;
  /** Of an interface or a network; the flag gives another one. */
  readonly name: (flag: string) => string;
}

/** Places, held until `release` or until this process ends. */
export interface Locks {
  /**
   * Holds the directory that now has the name, when another was made in place of the one that is held. Throws as
   * `acquireLocks`; the old one is held then.
   */
  renew(): void;
  /** May be called twice. */
  release(): void;
}

/**
 * Takes all of the places. Throws ClusternetError with exit 75 that names the process holding one of them, and
 * SettingsError when the directory cannot be opened; then none is held.
 */
export function acquireLocks(
  { dataDirectory, interfaceName, clusterNets = [] }: AgentPlaces,
  remedies: PlaceRemedies = remediesOfAgent,
): Locks {
  const directory = acquireDirectoryLock(dataDirectory, remedies.directory);
  const sockets: number[] = [];
  const release = (): void => {
    for (const socket of sockets.splice(0)) closeSync(socket);
    directory.release();
  };
  try {
    sockets.push(bindInterface(interfaceName, remedies));
    for (const network of clusterNets) {
      sockets.push(bindName(network, cannotRoute(network), remedies.name("--cluster-net")));
    }
  } catch (error) {
    release();
    throw error;
  }
  return { renew: () => directory.renew(), release };
}

/** How long a process that was killed may take to let go, and how often one looks meanwhile. */
const passing = { limitMs: 2_000, pauseMs: 20 };

/**
 * What `acquire`, one of the functions here, returns; called again for up to two seconds as long as who holds a place is
 * being ended or cannot be seen: whoever starts an agent again may be faster than the kernel with the one that was killed.
 * A holder that lives is thrown at once. Undefined when `signal` aborts meanwhile.
 */
export async function acquireSoon<T>(
  acquire: () => T,
  { clock, signal }: { readonly clock: Pick<Clock, "nowMs" | "sleep">; readonly signal: AbortSignal },
): Promise<T | undefined> {
  const endMs = clock.nowMs() + passing.limitMs;
  while (!signal.aborted) {
    try {
      return acquire();
    } catch (error) {
      const isOver = clock.nowMs() >= endMs;
      if (isOver || !(error instanceof PlaceHeldError) || !error.isPassing) throw error;
    }
    await clock.sleep(passing.pauseMs, signal);
  }
  return undefined;
}

/** A network that another agent routes. */
export interface HeldNetwork {
  readonly network: string;
  /** Which process that is, in words. */
  readonly holder: string;
}

/**
 * Takes those of the networks that no agent holds, so that none begins to route them meanwhile; `held` are the others.
 * Throws ClusternetError when a lock cannot be made at all.
 */
export function acquireFreeNetworks(
  networks: readonly string[],
): Pick<Locks, "release"> & { readonly held: readonly HeldNetwork[] } {
  const sockets: number[] = [];
  const held: HeldNetwork[] = [];
  const release = (): void => {
    for (const socket of sockets.splice(0)) closeSync(socket);
  };
  try {
    for (const network of networks) {
      const bound = tryBindName(network, cannotRoute(network));
      if (typeof bound === "number") sockets.push(bound);
      else held.push({ network, holder: describeHolder(bound.holder) });
    }
  } catch (error) {
    release();
    throw error;
  }
  return { release, held };
}

/**
 * Networks that agents route in this network namespace, this one's too. Takes nothing, as `findPlaceHolders`. `besides`:
 * without those of the processes that hold one of these places, for who would come after them; of a process that cannot be
 * seen they are told all the same.
 */
export function findHeldNetworks(besides?: Places): ReadonlySet<string> {
  const held = heldNames().filter((name) => name.includes("/"));
  if (besides === undefined || held.length === 0) return new Set(held);
  const { dataDirectory, interfaceName } = besides;
  const before = [findNameHolder(interfaceName), findDirectoryHolder(dataDirectory)].flatMap(
    (holder) => holder?.pid ?? [],
  );
  if (before.length === 0) return new Set(held);
  return new Set(held.filter((network) => !before.some((pid) => pid === findNameHolder(network)?.pid)));
}

/**
 * Takes a directory alone: for a program that has no interface. Throws as `acquireLocks`; `hint` says what to do about
 * the other process.
 */
export function acquireDirectoryLock(path: string, hint: string): Locks {
  let directory = lockDirectory(path, hint);
  let held = true;
  return {
    renew: () => {
      if (!held || isSameFile(fstatSync(directory, { bigint: true }), statOf(path))) return;
      const renewed = lockDirectory(path, hint);
      closeSync(directory);
      directory = renewed;
    },
    release: () => {
      if (held) closeSync(directory);
      held = false;
    },
  };
}

/** Takes an interface alone: for a program that has no data directory. Throws as `acquireLocks`. */
export function acquireInterfaceLock(
  interfaceName: string,
  remedies: Pick<PlaceRemedies, "name">,
): Pick<Locks, "release"> {
  let socket: number | undefined = bindInterface(interfaceName, remedies);
  return {
    release: () => {
      if (socket !== undefined) closeSync(socket);
      socket = undefined;
    },
  };
}

/** Who holds an interface, and the data directory that it holds besides, as far as that can be seen. */
export interface PlaceHolder {
  readonly interfaceName: string;
  /** Which process that is, in words. */
  readonly holder: string;
  readonly dataDirectory?: string;
}

/**
 * Those who hold an interface in this network namespace, by its name. Takes nothing, not even for a moment: an agent that
 * starts meanwhile is not turned away.
 */
export function findPlaceHolders(): readonly PlaceHolder[] {
  const names = heldNames().filter((name) => isInterfaceName(name));
  return [...new Set(names)].toSorted().map((interfaceName) => {
    const holder = findNameHolder(interfaceName);
    const dataDirectory = holder?.pid === undefined ? undefined : heldDirectoryOf(holder.pid);
    return {
      interfaceName,
      holder: describeHolder(holder),
      ...(dataDirectory === undefined ? {} : { dataDirectory }),
    };
  });
}

const { O_RDONLY, O_DIRECTORY } = constants;
const LOCK_EX = 2;
const LOCK_NB = 4;
const EAGAIN = 11;
const EADDRINUSE = 98;
const AF_UNIX = 1;
const SOCK_STREAM = 1;
const SOCK_CLOEXEC = 0o2000000;

const remediesOfAgent: PlaceRemedies = {
  directory: "Stop that agent first, or give this one a data directory of its own with --data-dir",
  name: (flag) => `Stop that process first (ss -xap shows it to root), or give this one another with ${flag}`,
};

function lockDirectory(path: string, hint: string): number {
  let descriptor: number;
  try {
    // Opened with O_CLOEXEC, as Bun opens everything: wireguard-go outlives us and must not keep the lock.
    descriptor = openSync(path, O_RDONLY | O_DIRECTORY);
  } catch (error) {
    throw new SettingsError(`Cannot use data directory ${quotePath(path)}: ${systemReason(error)}`, {
      cause: error,
      ...systemHint(error),
    });
  }
  using libc = openLibc();
  const errno = libc.flock(descriptor, LOCK_EX | LOCK_NB);
  if (errno === 0) return descriptor;
  closeSync(descriptor);
  const cannot = `Cannot use data directory ${quotePath(path)}`;
  const holder = findDirectoryHolder(path) ?? (errno === EAGAIN ? findLockHolder(path) : undefined);
  if (holder === undefined && errno !== EAGAIN) {
    throw new ClusternetError(`${cannot}: it cannot be locked, errno ${errno}`);
  }
  throw new PlaceHeldError(`${cannot}: ${describeHolder(holder)} holds it`, { holder, hint });
}

function bindInterface(interfaceName: string, remedies: Pick<PlaceRemedies, "name">): number {
  const cannot = `Cannot use interface ${quote(interfaceName)}`;
  return bindName(interfaceName, cannot, remedies.name("--interface"));
}

function cannotRoute(network: string): string {
  return `Cannot route cluster network ${quote(network)}`;
}

/** `cannot`: what this program cannot do without it. */
function bindName(name: string, cannot: string, hint: string): number {
  const bound = tryBindName(name, cannot);
  if (typeof bound === "number") return bound;
  const message = `${cannot}: ${describeHolder(bound.holder)} holds it in this network namespace`;
  throw new PlaceHeldError(message, { holder: bound.holder, hint });
}

/** The socket that holds the name, or who has it already. */
function tryBindName(name: string, cannot: string): number | { readonly holder: Holder | undefined } {
  const address = socketAddress(name);
  using libc = openLibc();
  const descriptor = libc.socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const errno = descriptor < 0 ? libc.errno() : libc.bind(descriptor, address);
  if (errno === 0) return descriptor;
  if (descriptor >= 0) closeSync(descriptor);
  const holder = findNameHolder(name);
  if (holder === undefined && errno !== EADDRINUSE) {
    throw new ClusternetError(`${cannot}: its lock cannot be made, errno ${errno}`);
  }
  return { holder };
}

/**
 * Name of the abstract socket, without the zero byte that it starts with, for an interface or a network: a network has
 * a slash, an interface never.
 */
function lockName(name: string): string {
  return `clusternet/${name}`;
}

/** sockaddr_un: family, a zero byte, the name; the length given to bind ends it. */
function socketAddress(name: string): Uint8Array {
  const bytes = Buffer.alloc(3 + Buffer.byteLength(lockName(name)));
  new DataView(bytes.buffer, bytes.byteOffset).setUint16(0, AF_UNIX, true);
  bytes.write(lockName(name), 3);
  return bytes;
}

function findNameHolder(name: string): Holder | undefined {
  return findSocketHolder(` @${lockName(name)}`);
}

/** Names of which somebody holds the lock, interfaces and networks. */
function heldNames(): readonly string[] {
  const start = ` @${lockName("")}`;
  return unixSockets().flatMap((line) => {
    const at = line.indexOf(start);
    return at < 0 ? [] : [line.slice(at + start.length)];
  });
}
