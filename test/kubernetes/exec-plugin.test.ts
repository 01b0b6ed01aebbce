/** Exec plugins of a kubeconfig, as small shell scripts: what they are told, what they may answer, what goes wrong. */
import { describe, expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import { chmod, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { systemClock } from "../../src/async.ts";
import { type PluginCredentials, runPlugin } from "../../src/kubernetes/exec-plugin.ts";
import type { ExecPlugin } from "../../src/kubernetes/kubeconfig.ts";
import { failure, withDirectory } from "../host/temporary.ts";
import { waitFor } from "../lab/wait.ts";

const never = new AbortController().signal;
const v1 = "client.authentication.k8s.io/v1";
const environment = { PATH: "/usr/bin:/bin", KEPT: "from outside", CHANGED: "from outside" };

interface Run {
  readonly plugin?: Partial<ExecPlugin>;
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
}

/** Runs a script as plugin, in a directory of its own that it knows as $DIR. */
async function withPlugin<T>(
  script: string,
  use: (run: (options?: Run) => Promise<PluginCredentials>, directory: string) => Promise<T>,
): Promise<T> {
  return await withDirectory(async (directory) => {
    const command = join(directory, "get-credentials");
    await writeFile(command, `#!/bin/sh\nDIR='${directory}'\n${script}\n`);
    await chmod(command, 0o755);
    return await use(
      ({ plugin = {}, timeoutMs, signal = never } = {}) =>
        runPlugin(
          { apiVersion: v1, command, args: [], env: {}, ...plugin },
          {
            cluster: { server: "https://k" },
            environment,
            clock: systemClock,
            ...(timeoutMs === undefined ? {} : { timeoutMs }),
          },
          signal,
        ),
      directory,
    );
  });
}

/** A script that answers with this. */
function answers(status: Readonly<Record<string, unknown>>, apiVersion = v1): string {
  return `cat <<'END'\n${JSON.stringify({ kind: "ExecCredential", apiVersion, status }, undefined, 2)}\nEND`;
}

/** One that has ended and waits for somebody to take note of it is not running. */
async function isRunning(pid: number): Promise<boolean> {
  return (await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "")) !== "";
}

function openDescriptors(): number {
  return readdirSync("/proc/self/fd").length;
}

describe("runPlugin()", () => {
  test("gives arguments, environment and request as kubectl does, with nobody at the terminal", async () => {
    const script = `printf '%s|' "$@" "$KEPT" "$CHANGED" "$ADDED" "$(cat)" >"$DIR/seen"
printf '%s' "$KUBERNETES_EXEC_INFO" >"$DIR/request"
${answers({ token: "t" }, `${v1}beta1`)}`;
    await withPlugin(script, async (run, directory) => {
      const plugin = {
        apiVersion: `${v1}beta1`,
        args: ["get", "a b", "$HOME", ""],
        env: { CHANGED: "from the kubeconfig", ADDED: "x y" },
        clusterInfo: {},
      } as const;
      expect(await run({ plugin })).toEqual({ token: "t" });
      expect(await readFile(join(directory, "seen"), "utf8")).toBe(
        "get|a b|$HOME||from outside|from the kubeconfig|x y||",
      );
      expect(JSON.parse(await readFile(join(directory, "request"), "utf8"))).toEqual({
        kind: "ExecCredential",
        apiVersion: `${v1}beta1`,
        spec: { interactive: false, cluster: { server: "https://k" } },
      });
      await run({ plugin: { apiVersion: `${v1}beta1` } });
      expect(JSON.parse(await readFile(join(directory, "request"), "utf8"))).toEqual({
        kind: "ExecCredential",
        apiVersion: `${v1}beta1`,
        spec: { interactive: false },
      });
    });
  });

  test.each<{ name: string; status: Record<string, unknown>; want: PluginCredentials }>([
    {
      name: "a token that expires",
      status: { token: "abc.d", expirationTimestamp: "2026-12-02T03:04:05Z" },
      want: { token: "abc.d", expiresAt: new Date("2026-12-02T03:04:05Z") },
    },
    {
      name: "a certificate and its key",
      status: { clientCertificateData: "CERT", clientKeyData: "KEY", token: null, expirationTimestamp: null },
      want: { certificate: { certificate: "CERT", key: "KEY" } },
    },
    {
      name: "both",
      status: { clientCertificateData: "CERT", clientKeyData: "KEY", token: "t" },
      want: { token: "t", certificate: { certificate: "CERT", key: "KEY" } },
    },
  ])("takes $name", async ({ status, want }) => {
    await withPlugin(answers(status), async (run) => expect(await run()).toEqual(want));
  });

  const secret = "SECRETSECRETSECRETSECRETSECRETSECRET";
  test.each<{ name: string; script: string; want: string }>([
    {
      name: "fails, without what could be a token of what it says",
      script: `echo "  no session for ${secret}," >&2; echo 'log in first' >&2; exit 3`,
      want: "exit code 3: no session for [redacted], log in first",
    },
    {
      name: "fails, and would clear the screen",
      script: `printf 'no\\033[2J session' >&2; exit 1`,
      want: "exit code 1: no\\u001b[2J session",
    },
    {
      name: "fails, and shows every kind of secret",
      script: `cat >&2 <<'END'
JWT eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U,
AWS "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", /J7alrXUtnFEMI/K7MDENG/x+CYEXAMPLEKEY=
bootstrap token: abcdef.0123456789abcdef, 'abcdef.abcdefghijklmnop'
Azure tY8Q~abcdefghijk.lmnopqrs; session=9f86d081884c7d65
-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEI
abc=
-----END PRIVATE KEY-----
END
exit 1`,
      want: `exit code 1: JWT [redacted], AWS "[redacted]", [redacted] bootstrap token: [redacted], '[redacted]' Azure [redacted]; [redacted] [redacted]`,
    },
    {
      name: "fails, and says a token just where what it says is cut",
      script: `echo "token ${"tok".repeat(30)}: ${"word ".repeat(56)}" >&2; exit 1`,
      want: `exit code 1: token [redacted]: ${"word ".repeat(56).trim()}`,
    },
    {
      name: "fails, and says more than is shown",
      script: `echo "token ${"tok".repeat(30)}: ${"word ".repeat(60)}" >&2; exit 1`,
      want: `exit code 1: … ${"word ".repeat(60).trim()}`,
    },
    {
      name: "fails, and says words, paths and addresses",
      script: `echo "dial tcp 192.168.100.200:6443: /usr/local/share/k8s/v1.34/authenticator: AuthorizationException" >&2; exit 1`,
      want: "exit code 1: dial tcp 192.168.100.200:6443: /usr/local/share/k8s/v1.34/authenticator: AuthorizationException",
    },
    {
      name: "fails, and says more than anybody reads, in one word",
      script: "echo no session >&2; head -c 3000000 /dev/zero | tr '\\0' x >&2; exit 1",
      want: "exit code 1: no session",
    },
    { name: "says nothing", script: "exit 0", want: "what it wrote is not JSON, expected an ExecCredential" },
    {
      name: "writes half of it",
      script: `echo '{"token": "${secret}'`,
      want: "what it wrote is not JSON, expected",
    },
    {
      name: "writes something else",
      script: `echo '{"token": "${secret}"}'`,
      want: 'field "kind" of its answer is',
    },
    {
      name: "answers in another version",
      script: answers({ token: secret }, `${v1}beta1`),
      want: `it answered with apiVersion "${v1}beta1", expected ${v1} as the kubeconfig says`,
    },
    {
      name: "gives nothing",
      script: answers({}),
      want: "its answer has neither a token nor a client certificate",
    },
    {
      name: "gives a certificate without key",
      script: answers({ clientCertificateData: secret }),
      want: "its answer has a client certificate or a key, expected both",
    },
    {
      name: "gives a token of two lines",
      script: answers({ token: `${secret}\nx: y` }),
      want: "its token is not printable ASCII without spaces",
    },
    {
      name: "gives no time as the end",
      script: answers({ token: secret, expirationTimestamp: "tomorrow" }),
      want: 'field "status.expirationTimestamp" of its answer is missing or wrong',
    },
    {
      name: "writes without end",
      script: "head -c 3000000 /dev/zero | tr '\\0' x",
      want: "it wrote more than 1048576 characters",
    },
  ])("refuses a plugin that $name", async ({ script, want }) => {
    await withPlugin(script, async (run, directory) => {
      const { message, hint } = await failure(() => run({ plugin: { installHint: "See\nthe docs" } }));
      expect(message).toStartWith(
        `Cannot get credentials from exec plugin "${directory}/get-credentials": ${want}`,
      );
      expect(hint).toBe("See the docs");
      expect(message).not.toContain(secret);
    });
  });

  test("says how to get a plugin that is not there", async () => {
    const { message, exit, hint } = await failure(() =>
      withPlugin("", (run) => run({ plugin: { command: "no-such-plugin", installHint: "apt install it" } })),
    );
    expect([message, exit, hint]).toEqual([
      'Cannot run exec plugin "no-such-plugin" of the kubeconfig: no such program',
      78,
      "apt install it",
    ]);
  });

  test("says how to get it as its maker says, whatever is in that", async () => {
    const installHint = "See https://docs.example/install-v1.2.3#kubectl-credentials";
    const { hint } = await failure(() => withPlugin("exit 1", (run) => run({ plugin: { installHint } })));
    expect(hint).toBe(installHint);
  });

  test("ends a plugin that hangs after its time, with all that it has started", async () => {
    await withPlugin("sleep 1000 & echo $! >$DIR/child; wait", async (run, directory) => {
      const { message } = await failure(() => run({ timeoutMs: 300 }));
      expect(message).toEndWith("still running after 0.3 s, so it was ended");
      const pid = Number(await readFile(join(directory, "child"), "utf8"));
      await waitFor(async () => !(await isRunning(pid)), "the end of the plugin's child");
    });
  });

  test.each([
    { name: "ended well", end: answers({ token: "t" }), want: "t" },
    { name: "failed", end: "echo no session >&2; exit 1", want: "exit code 1: no session" },
  ])(
    "takes what a plugin says that $name and has left something that holds its pipes, and keeps none",
    async ({ end, want }) => {
      await withPlugin(`setsid sleep 1000 & echo $! >$DIR/child\n${end}`, async (run, directory) => {
        const before = openDescriptors();
        const child = async (): Promise<number> => Number(await readFile(join(directory, "child"), "utf8"));
        try {
          const said = await run({ timeoutMs: 4_000 }).then(
            ({ token }) => token,
            (error: Error) => error.message,
          );
          expect(said).toEndWith(want);
          // It has its own life, as with kubectl.
          expect(await isRunning(await child())).toBe(true);
          await waitFor(() => openDescriptors() <= before, "the end of both pipes here");
        } finally {
          process.kill(await child(), "SIGKILL");
        }
      });
    },
  );

  test("ends the plugin when this program stops", async () => {
    await withPlugin("sleep 1000 & echo $! >$DIR/child; wait", async (run, directory) => {
      const stop = new AbortController();
      const running = failure(() => run({ signal: stop.signal }));
      const child = join(directory, "child");
      const pid = await waitFor(async () => Number(await readFile(child, "utf8")), "the plugin's child");
      stop.abort();
      expect((await running).message).toEndWith("it was ended, since this program stops");
      await waitFor(async () => !(await isRunning(pid)), "the end of the child");
    });
  });
});
