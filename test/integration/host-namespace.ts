/**
 * A host to try things on: a network namespace of its own, with a mount namespace whose /run is its own too,
 * since wireguard-go's sockets are otherwise shared by all namespaces of a machine.
 *
 * The two live as long as one sleeping process, which the kernel ends together with the test.
 */
import { mkdtemp, readFile, readdir, readlink, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import {
  createFollowCommand,
  createRunCommand,
  type FollowCommand,
  type RunCommand,
} from "../../src/host/command.ts";

export interface Namespace {
  readonly pid: number;
  /** A directory for this host's files. */
  readonly directory: string;
  readonly run: RunCommand;
  readonly follow: FollowCommand;
  /** Runs words given as one text without quotes in them. */
  readonly sh: (text: string) => Promise<string>;
  readonly readUnixSockets: () => Promise<string>;
  /** Ends every process inside, and the namespaces with them. */
  readonly remove: () => Promise<void>;
}

const setUp = "ip link set lo up && echo ready && exec sleep infinity";

/** `sharingRun`: the new network namespace sees the /run of that host, as the containers of a machine may. */
export async function createNamespace(sharingRun?: Namespace): Promise<Namespace> {
  const directory = await mkdtemp(join(tmpdir(), "clusternet-host-"));
  const unshare =
    sharingRun === undefined
      ? ["unshare", "-n", "-m", "sh", "-c", `mount -t tmpfs tmpfs /run && ${setUp}`]
      : ["nsenter", "-t", String(sharingRun.pid), "-m", "unshare", "-n", "sh", "-c", setUp];
  const words = ["setpriv", "--pdeathsig", "KILL", ...unshare];
  const holder = Bun.spawn(words, { stdin: "ignore", stdout: "pipe", stderr: "inherit" });
  const { value } = await holder.stdout.getReader().read();
  if (new TextDecoder().decode(value) !== "ready\n") throw new Error("cannot make a network namespace");
  const { pid } = holder;
  const run = createRunCommand();
  const follow = createFollowCommand();
  const inside = (argv: readonly string[]): string[] => [
    "nsenter",
    "-t",
    String(pid),
    "-n",
    "-m",
    "--",
    ...argv,
  ];
  const runInside: RunCommand = (argv, options) => run(inside(argv), options);
  return {
    pid,
    directory,
    run: runInside,
    follow: (argv, signal) => follow(inside(argv), signal),
    sh: (text) => runInside(text.split(" ")),
    readUnixSockets: () => readFile(`/proc/${pid}/net/unix`, "utf8"),
    async remove() {
      const network = await readlink(`/proc/${pid}/ns/net`);
      for (const name of await readdir("/proc")) {
        if (!/^\d+$/.test(name) || Number(name) === pid) continue;
        const other = await readlink(`/proc/${name}/ns/net`).catch(() => undefined);
        // Whatever is in a namespace that this test made was started by this test.
        if (other === network) process.kill(Number(name), "SIGKILL");
      }
      holder.kill("SIGKILL");
      await holder.exited;
      await rm(directory, { recursive: true });
    },
  };
}

/** Joins two namespaces by a cable: 192.0.2.<a> and 2001:db8::<a> on one end, <b> on the other. */
export async function connect(a: Namespace, b: Namespace, numbers: readonly [number, number]): Promise<void> {
  await a.run([..."ip link add u0 type veth peer name u0 netns".split(" "), String(b.pid)]);
  for (const [each, number] of [
    [a, numbers[0]],
    [b, numbers[1]],
  ] as const) {
    await each.sh(`ip address add 192.0.2.${number}/24 dev u0`);
    await each.sh(`ip address add 2001:db8::${number}/64 dev u0 nodad`);
    await each.sh("ip link set u0 up");
  }
}
