/**
 * One network namespace with a mount namespace of its own: a machine of the lab, a pod, or the underlay.
 *
 * Held open by a small process that ends when its owner does. A tmpfs on /run/wireguard keeps the UAPI
 * sockets of a userspace WireGuard apart: they belong to the file system, not to the network namespace,
 * so that `wg` would otherwise configure another machine's interface. `lo` is up, packets are forwarded,
 * and new IPv6 addresses are usable at once.
 */
import { Ping, type PingOptions } from "./ping.ts";
import { LabProcess, type Line } from "./process.ts";
import { waitFor, within } from "./wait.ts";

export interface SpawnOptions {
  /** Added to the few variables that every program of the lab gets (PATH, HOME). */
  readonly env?: Readonly<Record<string, string>>;
  /** Put in front of PATH. */
  readonly path?: string;
  /** Working directory. Default "/". */
  readonly cwd?: string;
  /** What the program reads on standard input. Default: nothing. */
  readonly stdin?: string;
  /** Standard input stays open for `say`. */
  readonly listens?: true;
  /** Called for every line as it comes. */
  readonly onLine?: (line: Line) => void;
}

export interface ExecOptions extends SpawnOptions {
  /** The program is ended, and the call fails, after this time. Default 30 s. */
  readonly limitMs?: number;
}

export interface ExecResult {
  /** Exit status; undefined when a signal ended the program. */
  readonly code: number | undefined;
  readonly signal: string | undefined;
  readonly stdout: string;
  readonly stderr: string;
}

const holderScript = `
set -e
if [ -n "$1" ]; then
  mkdir -p /run/wireguard
  mount -t tmpfs "$1" /run/wireguard
  mount -t sysfs sysfs /sys
fi
cd /proc/sys/net
echo 1 >ipv4/ip_forward
echo 1 >ipv6/conf/all/forwarding
for which in all default; do
  echo 0 >ipv4/conf/$which/rp_filter
  echo 0 >ipv6/conf/$which/accept_dad
done
ip link set lo up
cd /
echo ready
exec cat
`;

export class Namespace {
  readonly name: string;
  /** The process that holds the namespaces open: `ip link set X netns PID` moves a device here. */
  readonly pid: number;
  readonly #holder: Bun.Subprocess<"pipe", "pipe", "pipe">;

  private constructor(name: string, holder: Bun.Subprocess<"pipe", "pipe", "pipe">) {
    this.name = name;
    this.pid = holder.pid;
    this.#holder = holder;
  }

  /**
   * `mark` names the lab (see remains.ts). `sharing`: the new network namespace sees the files of that one, its
   * /run/wireguard among them, as the containers of a machine may.
   */
  static async create(name: string, mark: string, sharing?: Namespace): Promise<Namespace> {
    const [enter, source] =
      sharing === undefined
        ? ["unshare -n -m --propagation private --", `${mark}-${name}`]
        : [`nsenter -t ${sharing.pid} -m unshare -n --`, ""];
    const holder = Bun.spawn([...enter.split(" "), "sh", "-c", holderScript, "sh", source], {
      stdin: "pipe",
      stdout: "pipe",
      stderr: "pipe",
      env: baseEnvironment(),
    });
    const first = await within(holder.stdout.getReader().read(), 10_000, `namespace "${name}"`);
    if (first.done) {
      throw new Error(`Cannot make namespace "${name}": ${await new Response(holder.stderr).text()}`);
    }
    return new Namespace(name, holder);
  }

  /** Starts a program here. It is ended with the lab at the latest. */
  spawn(argv: readonly string[], options: SpawnOptions = {}): LabProcess {
    const base = baseEnvironment();
    const path = options.path === undefined ? base.PATH : `${options.path}:${base.PATH}`;
    return new LabProcess(
      ["nsenter", "-t", String(this.pid), "-n", "-m", `--wdns=${options.cwd ?? "/"}`, "--", ...argv],
      {
        env: { ...base, PATH: path, ...options.env },
        ...(options.stdin === undefined ? {} : { stdin: options.stdin }),
        ...(options.listens === undefined ? {} : { listens: options.listens }),
        ...(options.onLine === undefined ? {} : { onLine: options.onLine }),
      },
      argv,
    );
  }

  /** Runs a program to its end, whatever its exit status. */
  async run(argv: readonly string[], options: ExecOptions = {}): Promise<ExecResult> {
    const process = this.spawn(argv, options);
    try {
      const exit = await within(process.exited, options.limitMs ?? 30_000, "the end of the program");
      return { ...exit, stdout: process.stdout, stderr: process.stderr };
    } catch (error) {
      process.kill("SIGKILL");
      throw new Error(process.describe(), { cause: error });
    }
  }

  /** Runs a program that must end with status 0 and returns its standard output. */
  async exec(argv: readonly string[], options: ExecOptions = {}): Promise<string> {
    const result = await this.run(argv, options);
    if (result.code !== 0) {
      const end = result.signal ?? `status ${result.code}`;
      throw new Error(
        `Cannot run "${argv.join(" ")}" in "${this.name}": ${end}: ${result.stderr}${result.stdout}`,
      );
    }
    return result.stdout;
  }

  /** Runs several `ip` commands, one a line, in one process. */
  async ip(...commands: readonly string[]): Promise<void> {
    await this.exec(["ip", "-batch", "-"], { stdin: `${commands.join("\n")}\n` });
  }

  /** Starts to ping. */
  ping(target: string, options: PingOptions = {}): Ping {
    return new Ping(target, options, (argv, onLine) => this.spawn(argv, { onLine }));
  }

  /** Waits until `target` answers a single ping within 500 ms. */
  async reach(
    target: string,
    options: { readonly limitMs: number; readonly source?: string },
  ): Promise<void> {
    const source = options.source === undefined ? [] : ["-I", options.source];
    await waitFor(
      async () => (await this.run(["ping", "-n", "-c", "1", "-W", "0.5", ...source, target])).code === 0,
      { limitMs: options.limitMs, what: `a reply from ${target} to "${this.name}"` },
    );
  }

  /** Lets the holder end by itself. What else runs here is the lab's to end. */
  async release(): Promise<void> {
    await this.#holder.stdin.end();
    await this.#holder.exited;
  }
}

/** Nothing else of the caller's environment reaches a program under test: no CLUSTERNET_*, no locale. */
function baseEnvironment(): { readonly PATH: string; readonly HOME: string } {
  return {
    PATH: process.env["PATH"] ?? "/usr/sbin:/usr/bin:/sbin:/bin",
    HOME: process.env["HOME"] ?? "/root",
  };
}
