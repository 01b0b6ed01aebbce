/**
 * Which WireGuard this host has: the kernel's, or wireguard-go; and what is missing when it has none.
 *
 * Asked before the first interface is made. Each thing that can be missing has its own message and remedy and
 * ends a command with exit status 69. Leaves nothing behind: the kernel is asked by making a link of a name of its own and taking
 * it away at once, which also loads the module.
 */
import { existsSync } from "node:fs";
import { readFile, stat } from "node:fs/promises";
import { release } from "node:os";
import { ClusternetError, CommandError, exitStatus } from "../errors.ts";
import { findProgram, type RunCommand } from "./command.ts";

export type Implementation = "kernel" | "userspace";

export interface ImplementationOptions {
  readonly run: RunCommand;
  /** What --wireguard says. */
  readonly wireguard: Implementation | "auto";
  /** Finds a program in PATH. */
  readonly find?: (name: string) => string | undefined;
  /** Default /dev/net/tun. */
  readonly tunDevice?: string;
}

const tunPath = "/dev/net/tun";

/**
 * The implementation with which an interface can be made. Throws ClusternetError (exit 69): a program is missing,
 * no CAP_NET_ADMIN, no kernel WireGuard, no wireguard-go, no /dev/net/tun. Throws CommandError of another exit when
 * that could not be found out, since `ip` fails or hangs: it may work the next time.
 */
export async function chooseImplementation(options: ImplementationOptions): Promise<Implementation> {
  const { run, wireguard, find = findProgram, tunDevice = tunPath } = options;
  requireProgram(find, "wg", "wireguard-tools");
  requireProgram(find, "ip", "iproute2");
  // The kernel looks at the right to do this first, so the answer tells of CAP_NET_ADMIN also where wireguard-go is wanted.
  const kernel = await kernelHasWireguard(run);
  if (wireguard !== "userspace" && kernel) return "kernel";
  if (wireguard === "kernel") {
    throw unavailable(
      "Cannot create a WireGuard interface: this kernel has no WireGuard",
      "Load the module (modprobe wireguard), use Linux 5.6 or newer, or use --wireguard userspace",
    );
  }
  const kernelToo = wireguard === "auto" ? ", and this kernel has no WireGuard" : "";
  if (find("wireguard-go") === undefined) {
    throw unavailable(
      `Cannot create a WireGuard interface: wireguard-go is not in PATH${kernelToo}`,
      `Install it, on Debian with: apt-get install wireguard-go${wireguard === "auto" ? "; or load the kernel's module (modprobe wireguard)" : ""}`,
    );
  }
  if (!(await isCharacterDevice(tunDevice))) {
    throw unavailable(
      `Cannot create a WireGuard interface: there is no ${tunDevice}, which wireguard-go needs${kernelToo}`,
      `Load the module (modprobe tun), or in a container pass the device in (--device ${tunPath})`,
    );
  }
  return "userspace";
}

/** What this kernel says of its modules, without loading one. */
const kernelFiles = {
  loaded: "/sys/module/wireguard",
  modules: ["modules.builtin", "modules.dep"].map((name) => `/lib/modules/${release()}/${name}`),
};

/**
 * What `chooseImplementation` would find, without making a link and so without loading a module: for what is only shown.
 * A kernel that has the module and says so nowhere, as in a container, is taken for one without.
 */
export async function guessImplementation({
  wireguard,
  find = findProgram,
  files = kernelFiles,
}: Pick<ImplementationOptions, "wireguard" | "find"> & {
  readonly files?: typeof kernelFiles;
}): Promise<Implementation> {
  if (wireguard !== "auto") return wireguard;
  if (existsSync(files.loaded)) return "kernel";
  for (const path of files.modules) {
    const text = await readFile(path, "utf8").catch(() => "");
    if (/\/wireguard\.ko\b/.test(text)) return "kernel";
  }
  return find("wireguard-go") === undefined ? "kernel" : "userspace";
}

function requireProgram(find: (name: string) => string | undefined, name: string, debian: string): void {
  if (find(name) !== undefined) return;
  throw unavailable(
    `Cannot run "${name}": no such program in PATH`,
    `Install it, on Debian with: apt-get install ${debian}`,
  );
}

async function kernelHasWireguard(run: RunCommand): Promise<boolean> {
  const name = `cnprobe${process.pid}`;
  try {
    await run(["ip", "link", "add", "dev", name, "type", "wireguard"]);
  } catch (error) {
    if (!(error instanceof CommandError)) throw error;
    if (error.stderr.includes("Operation not permitted")) {
      throw unavailable(
        "Cannot create network interfaces: this process has no CAP_NET_ADMIN",
        "Run as root, or give the capability (in a container: --cap-add NET_ADMIN)",
        error,
      );
    }
    // "Operation not supported" is what a kernel without modules says.
    if (/Unknown device type|not supported/i.test(error.stderr)) return false;
    // Left behind by a process of this ID that was ended between the two commands.
    if (!error.stderr.includes("File exists")) throw error;
  }
  await run(["ip", "link", "delete", "dev", name]);
  return true;
}

async function isCharacterDevice(path: string): Promise<boolean> {
  return await stat(path).then(
    (found) => found.isCharacterDevice(),
    () => false,
  );
}

function unavailable(message: string, hint: string, cause?: unknown): ClusternetError {
  return new ClusternetError(message, {
    hint,
    exit: exitStatus.unavailable,
    ...(cause === undefined ? {} : { cause }),
  });
}
