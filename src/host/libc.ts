/**
 * Calls of libc that Bun does not have, by bun:ffi: the only place that opens the library.
 *
 * Every call goes through at once and blocks the thread while it runs, so only calls that do not wait belong here.
 */
import { dlopen, ptr, read } from "bun:ffi";
import { ClusternetError, exitStatus, messageOf } from "../errors.ts";

const compilerHint =
  "Lift the limit of this process' address space (`ulimit -v unlimited` in a shell, LimitAS=infinity in a unit of systemd), and unset BUN_JSC_useJIT";

/** What is called; a result is that of the manual page unless something else is said here. */
export interface Libc extends Disposable {
  /** 0 or an errno. */
  flock(descriptor: number, operation: number): number;
  /** A descriptor, or less than zero. */
  socket(domain: number, type: number, protocol: number): number;
  /** 0 or an errno. */
  bind(descriptor: number, address: Uint8Array): number;
  /** Both ends of a new pipe, that to read from first, or an errno. */
  pipe2(flags: number): readonly [number, number] | number;
  /** For commands that take a number. */
  fcntl(descriptor: number, command: number, argument: number): number;
  /** Number of entries that something is to be said of. `entries`: struct pollfd, 8 bytes each. */
  poll(entries: Uint8Array, waitMs: number): number;
  /** 0 or an errno, for the options that answer nothing else. */
  prctl(option: number, value: number): number;
  /** 0 or an errno. From this address on, so many bytes: both whole pages. */
  madvise(start: number, length: number, advice: number): number;
  /** 0 or an errno. Both limits, in the limit's own unit. */
  setrlimit(resource: number, limits: { readonly soft: bigint; readonly hard: bigint }): number;
  /** Of the last call that failed. */
  errno(): number;
}

/**
 * Opens it, in a fourth of a millisecond. To be disposed of, or kept for the life of the program. Throws ClusternetError
 * (exit 69): bun:ffi compiles each call, and a process that may map little memory has no compiler.
 */
export function openLibc(): Libc {
  const library = loadLibrary();
  const { symbols } = library;
  const errno = (): number => {
    const location = symbols.__errno_location();
    return location === null ? -1 : read.i32(location, 0);
  };
  const outcome = (result: number): number => (result === 0 ? 0 : errno());
  return {
    flock: (descriptor, operation) => outcome(symbols.flock(descriptor, operation)),
    socket: (domain, type, protocol) => symbols.socket(domain, type, protocol),
    bind: (descriptor, address) => outcome(symbols.bind(descriptor, ptr(address), address.length)),
    pipe2: (flags) => {
      const ends = new Int32Array(2);
      const result = symbols.pipe2(ptr(ends), flags);
      return result === 0 ? [ends[0] ?? -1, ends[1] ?? -1] : errno();
    },
    fcntl: (descriptor, command, argument) => symbols.fcntl(descriptor, command, argument),
    poll: (entries, waitMs) => symbols.poll(ptr(entries), entries.length / 8, waitMs),
    prctl: (option, value) => outcome(symbols.prctl(option, value, 0, 0, 0)),
    madvise: (start, length, advice) => outcome(symbols.madvise(start, length, advice)),
    setrlimit: (resource, { soft, hard }) => {
      const limits = new BigUint64Array([soft, hard]);
      return outcome(symbols.setrlimit(resource, ptr(limits)));
    },
    errno,
    [Symbol.dispose]: () => library.close(),
  };
}

function loadLibrary() {
  try {
    return dlopen("libc.so.6", {
      flock: { args: ["i32", "i32"], returns: "i32" },
      socket: { args: ["i32", "i32", "i32"], returns: "i32" },
      bind: { args: ["i32", "ptr", "u32"], returns: "i32" },
      pipe2: { args: ["ptr", "i32"], returns: "i32" },
      fcntl: { args: ["i32", "i32", "i32"], returns: "i32" },
      poll: { args: ["ptr", "u64", "i32"], returns: "i32" },
      prctl: { args: ["i32", "u64", "u64", "u64", "u64"], returns: "i32" },
      madvise: { args: ["u64", "u64", "i32"], returns: "i32" },
      setrlimit: { args: ["i32", "ptr"], returns: "i32" },
      __errno_location: { args: [], returns: "ptr" },
    });
  } catch (error) {
    throw new ClusternetError(`Cannot call the C library: ${messageOf(error)}`, {
      cause: error,
      exit: exitStatus.unavailable,
      ...(messageOf(error).includes("JIT") ? { hint: compilerHint } : {}),
    });
  }
}
