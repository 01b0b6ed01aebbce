/**
 * Programs run for real: arguments, environment, limits, and nothing secret in any error.
 */
import { describe, expect, test } from "bun:test";
import { chmod, mkdir, readFile, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { CommandError, messageOf, openFilesHint } from "../../src/errors.ts";
import { createFollowCommand, createRunCommand, redactKeys, renderArgv } from "../../src/host/command.ts";
import { chooseImplementation, guessImplementation } from "../../src/host/wireguard-go.ts";
import { waitFor } from "../lab/wait.ts";
import { privateKeyOf, publicKeyOf } from "../fakes/wanted.ts";
import { withDirectory } from "./temporary.ts";

const run = createRunCommand();
const commandModule = join(import.meta.dir, "../../src/host/command.ts");

async function failureOf(promise: Promise<unknown>): Promise<CommandError> {
  const error: unknown = await promise.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (error instanceof CommandError) return error;
  throw new Error(`expected a CommandError, got ${String(error)}`);
}

function refuse(): void {
  throw new Error("no use");
}

function ignore(): void {}

/** True while a process of this ID runs (a zombie does not). */
async function isRunning(pid: number): Promise<boolean> {
  const stat = await readFile(`/proc/${pid}/stat`, "latin1").catch(() => "");
  return stat !== "" && !/\) [ZX] /.test(stat);
}

describe("run()", () => {
  test("hands arguments over as they are", async () => {
    const words = [
      "",
      "a b",
      "*",
      "~",
      "$HOME",
      "`id`",
      "$(id)",
      "{a,b}",
      "\\x",
      "'",
      '"',
      "a\nb",
      "[Peer]",
      ";",
      "|",
      "é",
      "-n",
    ];
    expect(await run(["printf", "<%s>", ...words])).toBe(words.map((word) => `<${word}>`).join(""));
  });

  test("hands output on as it comes", async () => {
    const pieces: Uint8Array[] = [];
    const onOutput = (piece: Uint8Array): void => void pieces.push(Uint8Array.from(piece));
    expect(
      await run(["sh", "-c", "printf '\\303'; sleep 0.2; printf '\\251|'; sleep 0.2; echo end"], {
        onOutput,
      }),
    ).toBe("");
    expect(Buffer.concat(pieces).toString()).toBe("é|end\n");
    expect(pieces.length).toBeGreaterThan(1);
    expect((await failureOf(run(["sh", "-c", "echo out; echo why >&2; exit 3"], { onOutput }))).stderr).toBe(
      "why",
    );
  });

  test("ends a program whose output is of no use, and throws what whoever reads it has thrown", async () => {
    const begunMs = performance.now();
    const ended = run(["sh", "-c", "echo begin; exec sleep 60"], { onOutput: refuse }).catch(messageOf);
    expect(await ended).toBe("no use");
    expect(performance.now() - begunMs).toBeLessThan(5_000);
  });

  test("ends a program that goes on writing after its time", async () => {
    const { message } = await failureOf(
      run(["sh", "-c", "while :; do echo y; sleep 0.01; done"], { onOutput: ignore, timeoutMs: 200 }),
    );
    expect(message).toContain("still running after 0.2 s");
  });

  test("ends a program that writes without end, faster than it can be read, and a program of its that holds the pipe", async () => {
    for (const script of ["exec yes", "yes & echo $! >&2; exec sleep 60"]) {
      const { message } = await failureOf(run(["sh", "-c", script], { onOutput: ignore, timeoutMs: 200 }));
      expect(message).toContain("still running after 0.2 s");
    }
  });

  test("hands on many small writes in few pieces, whole and in order", async () => {
    const digest = new Bun.CryptoHasher("sha256");
    let pieces = 0;
    const script = "i=0; while [ $i -lt 500 ]; do printf '%4000s' $i; i=$((i + 1)); done";
    const begunMs = performance.now();
    await run(["sh", "-c", script], {
      onOutput: (piece) => {
        pieces++;
        digest.update(piece);
      },
    });
    // One look every 8 ms, and those that filled the buffer.
    expect(pieces).toBeLessThan(20 + (performance.now() - begunMs) / 8);
    const want = Array.from({ length: 500 }, (_, at) => String(at).padStart(4_000)).join("");
    expect(digest.digest("hex")).toBe(new Bun.CryptoHasher("sha256").update(want).digest("hex"));
  });

  test("takes a megabyte of arguments and gives back megabytes of output", async () => {
    const long = "x".repeat(100_000);
    expect((await run(["printf", "%s", ...Array.from({ length: 10 }, () => long)])).length).toBe(1_000_000);
    expect((await run(["head", "-c", "5000000", "/dev/zero"])).length).toBe(5_000_000);
  });

  test("gives the child PATH, LC_ALL=C and nothing else of this program", async () => {
    Bun.env["CLUSTERNET_TEST_SECRET"] = "x";
    try {
      const names = (await run(["env"])).split("\n").map((line) => line.split("=")[0]);
      // PWD is set by the shell of Bun, to the root.
      expect(new Set(names)).toEqual(new Set(["", "CLUSTERNET_CALL", "LC_ALL", "PATH", "PWD"]));
    } finally {
      delete Bun.env["CLUSTERNET_TEST_SECRET"];
    }
  });

  test("throws the exit code and what the program said", async () => {
    const error = await failureOf(run(["ip", "link", "show", "dev", "nope0"]));
    expect({ message: error.message, exitCode: error.exitCode }).toEqual({
      message:
        'Cannot run "/usr/sbin/ip link show dev nope0": exit code 1: Device "nope0" does not exist.'.replace(
          "/usr/sbin/",
          "",
        ),
      exitCode: 1,
    });
  });

  test("takes an exit code that the caller calls no error", async () => {
    expect(await run(["false"], { okCodes: [0, 1] })).toBe("");
  });

  test("names package and exit status 69 when the program is not in PATH", async () => {
    const error = await failureOf(createRunCommand({ path: "/nonexistent" })(["wg", "show"]));
    expect({ message: error.message, hint: error.hint, exit: error.exit }).toEqual({
      message: 'Cannot run "wg": no such program in PATH',
      hint: "Install it, on Debian with: apt-get install wireguard-tools",
      exit: 69,
    });
  });

  test.each([{ detached: false }, { detached: true }])(
    "ends a program that hangs, detached $detached",
    async ({ detached }) => {
      await withDirectory(async (directory) => {
        const program = join(directory, "hangs");
        const pidFile = join(directory, "pid");
        await Bun.write(program, `#!/bin/sh\necho $$ > ${pidFile}\nexec sleep 1000\n`);
        await chmod(program, 0o700);
        // Another call of the same program is not taken for the one that is late.
        const other = run([program], { timeoutMs: 60_000, detached }).catch((error: unknown) => error);
        const otherPid = Number(
          await waitFor(
            () =>
              readFile(pidFile, "utf8").then(
                (text) => text.endsWith("\n") && text,
                () => false,
              ),
            "the other program",
          ),
        );
        await Bun.write(pidFile, "");
        const error = await failureOf(run([program], { timeoutMs: 300, detached }));
        expect(error.message).toContain("still running after 0.3 s, so it was ended");
        expect(error.exitCode).toBeUndefined();
        const pid = Number(await readFile(pidFile, "utf8"));
        expect(pid).toBeGreaterThan(1);
        expect(await isRunning(pid)).toBe(false);
        expect(await isRunning(otherPid)).toBe(true);
        process.kill(otherPid, "SIGKILL");
        expect(await other).toBeInstanceOf(CommandError);
      });
    },
  );
});

test.each([
  { name: "in the shell", options: "{}" },
  { name: "with output that is handed on", options: "{ onOutput: () => {} }" },
  { name: "in a session of its own", options: "{ detached: true }" },
])("run() says that this process has too many open files, $name", async ({ options }) => {
  const code = `
    import { closeSync, openSync } from "node:fs";
    import { createRunCommand } from ${JSON.stringify(commandModule)};
    const run = createRunCommand();
    const tried = () => run(["false"], ${options}).then(() => "done", ({ message, hint = "" }) => message + "; " + hint);
    const ends = new Set([await tried()]);
    const kept = [];
    try {
      for (;;) kept.push(openSync("/dev/null"));
    } catch {}
    for (const descriptor of [undefined, ...kept]) {
      if (descriptor !== undefined) closeSync(descriptor);
      ends.add(await tried());
    }
    console.log(JSON.stringify([...ends]));`;
  const argv = ["sh", "-c", 'ulimit -n 48; exec "$0" -e "$1"', process.execPath, code];
  const child = Bun.spawn(argv, { stdout: "pipe", stderr: "inherit" });
  expect(JSON.parse(await child.stdout.text())).toEqual([
    'Cannot run "false": exit code 1; ',
    `Cannot run "false": this process has too many open files; ${openFilesHint}`,
  ]);
});

describe("run() of a wg that hangs", () => {
  test.each([
    { name: "stopped", stop: true, want: "is stopped: `kill -CONT PID` lets it go on" },
    { name: "silent", stop: false, want: "runs, and gives no answer that can be used" },
  ])(
    "names a wireguard-go that is $name, and nothing for an interface without one",
    async ({ stop, want }) => {
      await withDirectory(async (directory) => {
        const name = basename(directory);
        const sockets = join(directory, "run/wireguard");
        await mkdir(sockets, { recursive: true });
        await writeFile(join(directory, "wg"), "#!/bin/sh\nexec /bin/sleep 60\n", { mode: 0o755 });
        const listen = `Bun.listen({ unix: process.argv[1], socket: { data() {} } }); console.log("there");`;
        const server = Bun.spawn([process.execPath, "-e", listen, join(sockets, `${name}.sock`)], {
          stdout: "pipe",
        });
        try {
          await server.stdout.getReader().read();
          if (stop) {
            server.kill("SIGSTOP");
            await waitFor(
              async () => (await readFile(`/proc/${server.pid}/stat`, "latin1")).includes(") T "),
              "stopped",
            );
          }
          const hung = createRunCommand({ path: directory });
          const failureFor = (argv: readonly string[]) => failureOf(hung(argv, { timeoutMs: 100 }));
          const { message, hint } = await failureFor(["wg", "show", name, "dump"]);
          expect(message).toBe(
            `Cannot run "wg show ${name} dump": still running after 0.1 s, so it was ended`,
          );
          expect(hint).toStartWith(`process ${server.pid} (`);
          expect(hint).toEndWith(`) ${want.replace("PID", String(server.pid))}`);
          expect((await failureFor(["wg", "show", "other", "dump"])).hint).toBeUndefined();
        } finally {
          server.kill("SIGKILL");
          await server.exited;
        }
      });
    },
  );
});

describe("run() when this program is to stop", () => {
  test.each([
    { detached: false, when: "before" },
    { detached: false, when: "after" },
    { detached: true, when: "before" },
    { detached: true, when: "after" },
  ])(
    "ends a program that hangs within a second, detached $detached, told $when its start",
    async ({ detached, when }) => {
      const stop = new AbortController();
      if (when === "before") stop.abort();
      const startedMs = performance.now();
      const hanging = failureOf(run(["sleep", "1000"], { signal: stop.signal, detached }));
      stop.abort();
      const { message, exitCode } = await hanging;
      expect({ message, exitCode }).toEqual({
        message: 'Cannot run "sleep 1000": still running 0.7 s after it was to stop, so it was ended',
        exitCode: undefined,
      });
      // The time that it is given, and not the ten seconds that a program may take.
      expect(performance.now() - startedMs).toBeGreaterThan(690);
      expect(performance.now() - startedMs).toBeLessThan(4_000);
    },
  );

  test("lets one that works come to its end, and keeps to a shorter limit of its own", async () => {
    const signal = AbortSignal.abort();
    expect(await run(["sh", "-c", "sleep 0.1; echo done"], { signal })).toBe("done\n");
    const late = await failureOf(run(["sleep", "1000"], { signal, timeoutMs: 200 }));
    expect(late.message).toContain("still running after 0.2 s");
  });
});

describe("no private key is shown", () => {
  const secret = privateKeyOf(77).reveal();

  test.each([
    { name: "an unknown word", line: `PrivatKey = ${secret}` },
    { name: "a key a character too long", line: `PrivateKey = ${secret.slice(0, 43)}X=` },
    { name: "a key a character too short", line: `PrivateKey = ${secret.slice(1)}` },
    { name: "a key without its end", line: `PrivateKey = ${secret.slice(0, 43)}` },
    { name: "a key cut in the middle", line: `PrivateKey = ${secret.slice(0, 20)}` },
    { name: "a word glued to the key", line: `PrivateKey${secret}` },
  ])("by wg reading a file with $name", async ({ line }) => {
    await withDirectory(async (directory) => {
      const file = join(directory, "broken.conf");
      await Bun.write(file, `[Interface]\n${line}\n`);
      const error = await failureOf(run(["wg", "syncconf", "clusternet-none", file]));
      const shown = `${error.message}\n${error.stderr}\n${Bun.inspect(error)}`;
      for (let at = 0; at + 12 <= secret.length; at++) expect(shown).not.toContain(secret.slice(at, at + 12));
      expect(error.stderr).toContain("[redacted]");
    });
  });

  test("by a key file with a typo", async () => {
    await withDirectory(async (directory) => {
      const file = join(directory, "key");
      await Bun.write(file, `${secret.slice(0, 42)}!=\n`);
      const error = await failureOf(run(["wg", "set", "clusternet-none", "private-key", file]));
      expect(error.message).not.toContain(secret.slice(0, 12));
    });
  });

  test("but public keys that are known stay readable", () => {
    const known = publicKeyOf(2);
    expect(redactKeys(`peer ${known} and ${secret}`, new Set([known]))).toBe(`peer ${known} and [redacted]`);
  });
});

test("renderArgv() quotes what needs it and cuts what is long", () => {
  expect(renderArgv(["wg", "set", "x", "allowed-ips", "", "a b"])).toBe('wg set x allowed-ips "" "a b"');
  expect(renderArgv(["wg", "x".repeat(1_000)])).toHaveLength(201);
});

describe("follow()", () => {
  test("yields lines as they come and ends the program with the signal", async () => {
    const stop = new AbortController();
    const seen: string[] = [];
    for await (const line of createFollowCommand()(
      ["sh", "-c", "echo $$; echo two; exec sleep 1000"],
      stop.signal,
    )) {
      seen.push(line);
      if (seen.length === 2) stop.abort();
    }
    expect(seen[1]).toBe("two");
    expect(await isRunning(Number(seen[0]))).toBe(false);
  });

  test("says the last words of a program, without the box that wireguard-go draws around its advice", async () => {
    const box = "┌────┐\n│ Running wireguard-go is not required │\n└────┘";
    const said = `${box}\nERROR: UAPI listen error: unix socket in use\n`;
    const error = await failureOf(run(["sh", "-c", 'printf %s "$1" >&2; exit 1', "sh", said]));
    expect(error.stderr).toBe("ERROR: UAPI listen error: unix socket in use");
  });

  test("follows also where setpriv is busybox's, which knows no --pdeathsig", async () => {
    await withDirectory(async (directory) => {
      await Bun.write(join(directory, "setpriv"), "#!/bin/sh\necho unrecognized option >&2\nexit 1\n");
      await chmod(join(directory, "setpriv"), 0o755);
      const lines: string[] = [];
      const follow = createFollowCommand({ path: `${directory}:${process.env["PATH"]}` });
      for await (const line of follow(["echo", "here"], new AbortController().signal)) lines.push(line);
      expect(lines).toEqual(["here"]);
    });
  });

  test("leaves no program behind when this one is killed", async () => {
    const code = `import { createFollowCommand } from ${JSON.stringify(join(import.meta.dir, "../../src/host/command.ts"))};
      for await (const line of createFollowCommand()(["sh", "-c", "echo $$; exec sleep 1000"], new AbortController().signal)) console.log(line);`;
    await withDirectory(async (directory) => {
      const script = join(directory, "follow.ts");
      await Bun.write(script, code);
      const parent = Bun.spawn([process.execPath, script], {
        stdin: "ignore",
        stdout: "pipe",
        stderr: "inherit",
      });
      const { value } = await parent.stdout.getReader().read();
      const pid = Number(new TextDecoder().decode(value));
      expect(await isRunning(pid)).toBe(true);
      parent.kill("SIGKILL");
      await parent.exited;
      await waitFor(async () => !(await isRunning(pid)), "the followed program to end");
    });
  });
});

const wireguardGo = (name: string): string => `/usr/bin/${name}`;
const onlyTools = (name: string): string | undefined =>
  name === "wireguard-go" ? undefined : `/usr/bin/${name}`;
const answering = (stderr: string | undefined) => (argv: readonly string[]) =>
  stderr === undefined
    ? Promise.resolve("")
    : Promise.reject(new CommandError("Cannot run it", { argv, exitCode: 2, stderr }));

describe("guessImplementation()", () => {
  const modules = {
    none: "kernel/drivers/net/wireless/b.ko:\n",
    there: "kernel/drivers/net/wireguard/wireguard.ko.xz: kernel/net/ipv4/udp_tunnel.ko.xz\n",
  };

  test.each<{
    name: string;
    wireguard?: "kernel" | "userspace" | "auto";
    loaded?: boolean;
    dep?: string;
    find?: (name: string) => string | undefined;
    want: "kernel" | "userspace";
  }>([
    {
      name: "what is asked for",
      wireguard: "userspace",
      loaded: true,
      dep: modules.there,
      want: "userspace",
    },
    {
      name: "what is asked for, also where it is not",
      wireguard: "kernel",
      dep: modules.none,
      want: "kernel",
    },
    { name: "the kernel's that is loaded", loaded: true, dep: modules.none, want: "kernel" },
    { name: "the kernel's that would be loaded", dep: modules.there, want: "kernel" },
    { name: "wireguard-go where the kernel names none", dep: modules.none, want: "userspace" },
    { name: "wireguard-go where the kernel says nothing", want: "userspace" },
    { name: "the kernel's where there is nothing else", find: onlyTools, want: "kernel" },
  ])("names $name", async ({ wireguard = "auto", loaded, dep, find = wireguardGo, want }) => {
    await withDirectory(async (directory) => {
      const path = join(directory, "modules.dep");
      if (dep !== undefined) await Bun.write(path, dep);
      const files = { loaded: loaded === true ? directory : join(directory, "none"), modules: [path] };
      expect(await guessImplementation({ wireguard, find, files })).toBe(want);
    });
  });
});

describe("chooseImplementation()", () => {
  const kernel = answering(undefined);
  const noKernel = answering("Error: Unknown device type.");

  test.each([
    {
      name: "the kernel's when it is there",
      run: kernel,
      find: wireguardGo,
      wireguard: "auto",
      want: "kernel",
    },
    {
      name: "the kernel's when it is asked for",
      run: kernel,
      find: onlyTools,
      wireguard: "kernel",
      want: "kernel",
    },
    {
      name: "wireguard-go where the kernel has none",
      run: noKernel,
      find: wireguardGo,
      wireguard: "auto",
      want: "userspace",
    },
    {
      name: "wireguard-go when it is asked for",
      run: kernel,
      find: wireguardGo,
      wireguard: "userspace",
      want: "userspace",
    },
  ] as const)("takes $name", async ({ run, find, wireguard, want }) => {
    expect(await chooseImplementation({ run, find, wireguard, tunDevice: "/dev/null" })).toBe(want);
  });

  test.each([
    {
      name: "wg is missing",
      options: { run: kernel, find: () => undefined, wireguard: "auto" },
      message: 'Cannot run "wg": no such program in PATH',
      hint: "apt-get install wireguard-tools",
    },
    {
      name: "ip is missing",
      options: {
        run: kernel,
        find: (name: string) => (name === "wg" ? "/usr/bin/wg" : undefined),
        wireguard: "auto",
      },
      message: 'Cannot run "ip": no such program in PATH',
      hint: "apt-get install iproute2",
    },
    {
      name: "the right to do it is missing",
      options: {
        run: answering("RTNETLINK answers: Operation not permitted"),
        find: wireguardGo,
        wireguard: "userspace",
      },
      message: "Cannot create network interfaces: this process has no CAP_NET_ADMIN",
      hint: "Run as root, or give the capability (in a container: --cap-add NET_ADMIN)",
    },
    {
      name: "the kernel has none and it is asked for",
      options: { run: noKernel, find: wireguardGo, wireguard: "kernel" },
      message: "Cannot create a WireGuard interface: this kernel has no WireGuard",
      hint: "modprobe wireguard",
    },
    {
      name: "neither is there",
      options: { run: noKernel, find: onlyTools, wireguard: "auto" },
      message:
        "Cannot create a WireGuard interface: wireguard-go is not in PATH, and this kernel has no WireGuard",
      hint: "apt-get install wireguard-go",
    },
    {
      name: "there is no /dev/net/tun",
      options: { run: noKernel, find: wireguardGo, wireguard: "userspace", tunDevice: "/nonexistent" },
      message: "Cannot create a WireGuard interface: there is no /nonexistent, which wireguard-go needs",
      hint: "modprobe tun",
    },
  ] as const)("says what to do when $name, with exit status 69", async ({ options, message, hint }) => {
    const error: unknown = await chooseImplementation({ tunDevice: "/dev/null", ...options }).catch(
      (thrown: unknown) => thrown,
    );
    expect(error).toMatchObject({ message, exit: 69 });
    expect(String((error as { hint?: string }).hint)).toContain(hint);
  });

  test("takes a failure of ip that says nothing of the kernel for none that lasts", async () => {
    const options = { find: wireguardGo, wireguard: "auto", tunDevice: "/dev/null" } as const;
    const busy = answering("ip: Cannot allocate memory");
    expect(await failureOf(chooseImplementation({ ...options, run: busy }))).toMatchObject({ exit: 1 });
  });
});
