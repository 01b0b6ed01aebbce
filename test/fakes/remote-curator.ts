/**
 * The test's side of fakes/curator-process.ts: the methods of FakeCurator, each returning a promise.
 *
 *     await using curator = await RemoteCurator.start({ prefix: ["ip", "netns", "exec", "cluster"], listen: "10.0.0.1:7835" });
 *     await curator.call.backlog(node({ id: "a" }));
 *     process.kill(curator.pid, "SIGSTOP");
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { CredentialFiles } from "../../src/trust/credential-files.ts";
import type { FakeCurator } from "./curator.ts";

const methods = [
  "backlog",
  "style",
  "put",
  "putTogether",
  "remove",
  "forget",
  "push",
  "releaseLast",
  "endStreams",
  "refuseWatches",
  "refuseAnnouncements",
  "judgeAsMetropolis",
  "refuseStatusReports",
  "reflect",
  "hangCalls",
  "leader",
  "seen",
  "current",
  "pretend",
  "churn",
  "pause",
  "resume",
] as const satisfies readonly (keyof FakeCurator)[];
type RemoteMethod = (typeof methods)[number];

type Remote = {
  readonly [Name in RemoteMethod]: (
    ...args: Parameters<FakeCurator[Name]>
  ) => Promise<Awaited<ReturnType<FakeCurator[Name]>>>;
};

/** Whether the name is one of a method that may be called from outside. */
export function isRemoteMethod(name: string): name is RemoteMethod {
  return (methods as readonly string[]).includes(name);
}

/** JSON with bytes in it. */
export function toJson(value: unknown): string {
  // `this[key]`, because a Buffer has been turned into something else by its toJSON when it comes as argument.
  return JSON.stringify(value, function (this: Record<string, unknown>, key, each: unknown) {
    const original = this[key];
    return original instanceof Uint8Array ? { $bytes: original.toBase64() } : each;
  });
}

/** What `toJson` made. */
export function fromJson(text: string): unknown {
  return JSON.parse(text, (_key, each: unknown) =>
    typeof each === "object" && each !== null && "$bytes" in each
      ? Uint8Array.fromBase64(String(each.$bytes))
      : each,
  );
}

/** A fake Curator that runs as a process, perhaps in another network namespace. */
export class RemoteCurator implements AsyncDisposable {
  /** The methods of FakeCurator. */
  readonly call: Remote;
  /** HOST:PORT for `--curator`. */
  readonly address: string;
  readonly #process: Bun.Subprocess<"pipe", "pipe", "inherit">;
  readonly #folder: string;

  private constructor(
    process: Bun.Subprocess<"pipe", "pipe", "inherit">,
    folder: string,
    socket: string,
    address: string,
  ) {
    this.#process = process;
    this.#folder = folder;
    this.address = address;
    const call = async (method: RemoteMethod, args: unknown[]): Promise<unknown> => {
      const answer = await fetch("http://curator/", {
        unix: socket,
        method: "POST",
        body: toJson({ method, args }),
      });
      const text = await answer.text();
      if (!answer.ok) throw new Error(`Cannot call ${method} of the fake Curator: ${text}`);
      return fromJson(text);
    };
    this.call = Object.fromEntries(
      methods.map((method) => [method, (...args: unknown[]) => call(method, args)]),
    ) as unknown as Remote;
  }

  /** Starts it and waits until it listens. `prefix` is a command that runs another one, like `ip netns exec NAME`. */
  static async start(
    options: {
      readonly listen?: string;
      readonly prefix?: readonly string[];
      readonly tls?: CredentialFiles;
    } = {},
  ): Promise<RemoteCurator> {
    const folder = await mkdtemp(join(tmpdir(), "curator-"));
    const socket = join(folder, "control.sock");
    const program = join(import.meta.dir, "curator-process.ts");
    const argv = [
      ...(options.prefix ?? []),
      process.execPath,
      program,
      "--listen",
      options.listen ?? "127.0.0.1:0",
      "--control",
      socket,
      ...Object.entries(options.tls ?? {}).flatMap(([name, path]) => [`--${name}`, path]),
    ];
    const child = Bun.spawn(argv, { stdin: "pipe", stdout: "pipe", stderr: "inherit" });
    const { value } = await child.stdout.getReader().read();
    const address = new TextDecoder().decode(value).trim();
    if (address === "") {
      await child.exited;
      await rm(folder, { recursive: true });
      throw new Error(`Cannot start a fake Curator: ${argv.join(" ")} ended with ${child.exitCode}`);
    }
    return new RemoteCurator(child, folder, socket, address);
  }

  /** Of the process that was started: of `prefix`, unless that replaces itself by what it runs, as `ip netns exec` does. */
  get pid(): number {
    return this.#process.pid;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    // A stopped process takes no other signal until it goes on, but SIGKILL it takes.
    this.#process.kill("SIGKILL");
    await this.#process.exited;
    await rm(this.#folder, { recursive: true, force: true });
  }
}
