/**
 * The lab that the other integration tests stand on: what it counts as lost, what it leaves behind.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, statSync } from "node:fs";
import { join } from "node:path";
import { LeakWatch } from "../lab/leak-watch.ts";
import { Lab, type Machine } from "../lab/lab.ts";
import { Ping } from "../lab/ping.ts";
import { processesOf, removeOrphanedLabs } from "../lab/remains.ts";
import { waitFor } from "../lab/wait.ts";

const lines = (text: string): string[] => text.split("\n").filter((line) => line !== "");

describe("lab", () => {
  let lab: Lab;
  let a: Machine;
  let b: Machine;

  beforeAll(async () => {
    lab = await Lab.create();
    a = await lab.machine("a", {
      pod: [
        { prefix: "10.192.1.0/24", address: "10.192.1.2" },
        { prefix: "fd10:c1:0:1::/64", address: "fd10:c1:0:1::2" },
      ],
    });
    b = await lab.machine("b");
  });
  afterAll(() => lab.dispose());

  test("machines have addresses of both families and reach each other at once", async () => {
    expect([a.address, a.address6, b.address, b.address6]).toEqual([
      "192.0.2.1",
      "2001:db8::1",
      "192.0.2.2",
      "2001:db8::2",
    ]);
    await a.exec(["ping", "-n", "-c", "1", "-W", "2", b.address]);
    await a.exec(["ping", "-n", "-c", "1", "-W", "2", b.address6]);
  });

  test("a pod reaches its machine, and the machine the pod, in both families", async () => {
    await b.ip("route add 10.192.1.0/24 via 192.0.2.1", "route add fd10:c1:0:1::/64 via 2001:db8::1");
    for (const target of [b.address, b.address6]) {
      await a.pod.exec(["ping", "-n", "-c", "1", "-W", "2", target]);
    }
    for (const target of ["10.192.1.2", "fd10:c1:0:1::2"]) {
      await a.exec(["ping", "-n", "-c", "1", "-W", "2", target]);
      await b.exec(["ping", "-n", "-c", "1", "-W", "2", target]);
    }
  });

  test("a machine has its own /run/wireguard and no device of the caller", async () => {
    await a.exec(["touch", "/run/wireguard/only-here"]);
    expect(existsSync("/run/wireguard/only-here")).toBe(false);
    expect((await b.run(["ls", "/run/wireguard/only-here"])).code).not.toBe(0);
    expect(lines(await a.exec(["ls", "/sys/class/net"]))).toEqual(["eth0", "lo", "pod"]);
  });

  test("a ping over an idle underlay loses nothing and sends at its rate", async () => {
    const started = performance.now();
    const ping = a.ping(b.address);
    await ping.sent(300, 20_000);
    const result = await ping.stop();
    const seconds = (performance.now() - started) / 1000;
    expect(result).toMatchObject({ lost: 0, late: 0, lostNumbers: [], received: result.sent });
    expect(result.sent).toBeGreaterThanOrEqual(300);
    expect(result.sent).toBeLessThanOrEqual(200 * seconds + 10);
  });

  test("a ping that is cut for a while counts the packets without reply as lost", async () => {
    const ping = a.ping(b.address6);
    await ping.sent(50, 20_000);
    const cut = await lab.cut(a, b);
    await ping.sent(150, 20_000);
    await cut.restore();
    await ping.sent(250, 20_000);
    const { sent, received, lost, late, lostNumbers } = await ping.stop();
    expect(late).toBe(0);
    expect(lost).toBeGreaterThanOrEqual(80);
    expect(lost).toBeLessThan(200);
    expect(received + lost).toBe(sent);
    expect(lostNumbers.length).toBe(20);
    expect(lostNumbers[0]).toBeGreaterThan(5);
  });

  test("a reply later than the limit counts as lost and as late", async () => {
    // Packets to a neighbour that does not answer are queued, as WireGuard does while it handshakes: once
    // the machine answers again (asked once a second), what was queued gets its replies, late.
    const cut = await lab.isolate(b);
    await a.exec(["ip", "neighbour", "flush", "dev", "eth0"]);
    const ping = a.ping(b.address, { lateMs: 100 });
    await ping.sent(8, 20_000);
    await cut.restore();
    await a.reach(b.address, { limitMs: 5_000 });
    const result = await ping.stop();
    expect(result.late).toBeGreaterThanOrEqual(5);
    expect(result.lost).toBeGreaterThanOrEqual(result.late);
    expect(result.received).toBe(result.sent - result.lost);
    expect(result.maxMs).toBeGreaterThan(100);
    expect(result.lostNumbers).toContain(1);
  });

  test("processes of a ping never take each other's replies, and what ping complains of is in its result", async () => {
    const identifiers: (string | undefined)[] = [];
    const ping = new Ping("198.51.100.1", { rate: 200 }, (argv, onLine) => {
      identifiers.push(argv[argv.indexOf("-e") + 1]);
      return a.pod.spawn(argv, { onLine });
    });
    expect([identifiers.length, new Set(identifiers).size]).toEqual([4, 4]);
    await ping.sent(16, 20_000);
    const result = await ping.stop();
    expect([result.received, result.lost]).toEqual([0, result.sent]);
    expect(result.complaints).toContain("From 169.254.1.1 icmp_seq=1 Destination Net Unreachable");
  });

  test("an isolated machine reaches nobody, and everybody again after restore", async () => {
    const cut = await lab.isolate(b);
    expect((await a.run(["ping", "-n", "-c", "1", "-W", "0.3", b.address])).code).not.toBe(0);
    expect((await b.run(["ping", "-n", "-c", "1", "-W", "0.3", a.address6])).code).not.toBe(0);
    await cut.restore();
    await a.reach(b.address, { limitMs: 5_000 });
    await b.reach(a.address6, { limitMs: 5_000 });
  });

  test("a packet for ClusterNet that leaves unencrypted is seen, and only while it is watched", async () => {
    const machine = await lab.machine("leaky");
    await using watch = await LeakWatch.start(machine);
    await machine.run(["ping", "-n", "-c", "1", "-W", "0.1", "10.192.9.9"]);
    await machine.run(["ping", "-n", "-c", "1", "-W", "0.1", "192.0.2.250"]);
    const leaked = await watch.stop();
    expect(leaked.length).toBe(1);
    expect(leaked[0]).toMatch(/> 10\.192\.9\.9: ICMP echo request/);
  });

  test("a spawned program is read line by line, waited for and ended", async () => {
    const script = `trap 'echo bye; exit 7' TERM; echo "$1" >&2; read -r word; echo "got $word"; while :; do sleep 0.01; done`;
    const process = a.spawn(["sh", "-c", script, "sh", "ready"], {
      stdin: "input\n",
      env: { MARK: "x" },
      cwd: "/tmp",
    });
    expect(await process.waitForLine(/ready/, { limitMs: 5_000 })).toMatchObject({ stream: "stderr" });
    expect(await process.waitForLine(/got input/, { limitMs: 5_000 })).toMatchObject({ stream: "stdout" });
    const missing = await process
      .waitForLine(/never/, { limitMs: 50 })
      .catch((error: unknown) => String(error));
    expect(missing).toContain("got input");
    expect(await process.stop()).toEqual({ code: 7, signal: undefined });
    expect(process.stdout).toBe("got input\nbye\n");
  });

  test("a program that leaves a daemon with its output open still ends", async () => {
    const { code, stdout } = await a.run(["sh", "-c", "sleep 600 & echo done"]);
    expect({ code, stdout }).toEqual({ code: 0, stdout: "done\n" });
  });

  test("the environment of the caller does not reach a program", async () => {
    const environment = await a.exec(["sh", "-c", "env | sed 's/=.*//' | sort"], { env: { MARK: "x" } });
    expect(lines(environment)).toEqual(["HOME", "MARK", "PATH", "PWD"]);
  });

  test("the recorder tells changes from looks, with every argument", async () => {
    const recorder = await lab.recorder();
    const path = { path: recorder.path };
    await a.exec(["ip", "-j", "link", "show"], path);
    await a.exec(["ip", "address", "add", "203.0.113.7/32", "dev", "lo"], path);
    await a.run(["wg", "set", "no such", "peer", ""], path);
    await a.run(["wg", "show", "all", "dump"], path);
    const batch = async (lines: string): Promise<string> =>
      await a.exec(["sh", "-c", `printf '${lines}' | ip -j -batch -`], path);
    expect(lines(await batch("link show lo\\nroute show\\n"))).toHaveLength(2);
    await batch("link set lo up\\nlink show lo\\n");
    expect(await recorder.changes()).toEqual([
      ["ip", "address", "add", "203.0.113.7/32", "dev", "lo"],
      ["wg", "set", "no such", "peer", ""],
      ["ip", "-j", "-batch", "-", "link set lo up\nlink show lo"],
    ]);
    expect(await recorder.calls()).toHaveLength(6);
    await recorder.clear();
    expect(await recorder.calls()).toEqual([]);
  });
});

describe("end of a lab", () => {
  test("nothing is left: no process, no directory, also of daemons in a session of their own", async () => {
    const lab = await Lab.create();
    const a = await lab.machine("a", { pod: [{ prefix: "10.192.1.0/24", address: "10.192.1.2" }] });
    const directory = await lab.directory();
    expect(statSync(directory).mode & 0o777).toBe(0o700);
    await a.exec(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"]);
    await a.exec(["wireguard-go", "wg0"]);
    a.ping("127.0.0.1");
    // Underlay, machine, pod, the two daemons, the ping.
    await waitFor(() => processesOf(lab.mark).length >= 6, { limitMs: 5_000, what: "all processes" });
    await lab.dispose();
    expect(processesOf(lab.mark)).toEqual([]);
    expect(existsSync(directory)).toBe(false);
    await lab.dispose();
  });

  // In a process of its own that is ended from outside while its lab is up.
  const owner = `
    const { Lab } = await import(${JSON.stringify(join(import.meta.dir, "../lab/lab.ts"))});
    const lab = await Lab.create();
    const a = await lab.machine("a");
    const directory = await lab.directory();
    await a.exec(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 &"]);
    console.log(JSON.stringify({ mark: lab.mark, directory }));
    if (process.argv.at(-1) === "throw") throw new Error("on purpose");
    if (process.argv.at(-1) === "exit") process.exit(3);
    setInterval(() => {}, 1000);
  `;
  test.each([
    { name: "SIGINT", end: "SIGINT", status: 130 },
    { name: "SIGTERM", end: "SIGTERM", status: 143 },
    { name: "an uncaught error", end: "throw", status: 1 },
    { name: "process.exit()", end: "exit", status: 3 },
    { name: "SIGKILL, when the next lab is made", end: "SIGKILL", status: 137 },
  ] as const)("nothing is left after $name", async ({ end, status }) => {
    const child = Bun.spawn([process.execPath, "-e", owner, end], { stdout: "pipe", stderr: "ignore" });
    const first = await child.stdout.getReader().read();
    const { mark, directory } = JSON.parse(new TextDecoder().decode(first.value)) as {
      mark: string;
      directory: string;
    };
    if (end.startsWith("SIG")) child.kill(end as NodeJS.Signals);
    expect(await child.exited).toBe(status);
    if (end === "SIGKILL") {
      expect(processesOf(mark).length).toBeGreaterThan(0);
      removeOrphanedLabs();
    }
    expect(processesOf(mark)).toEqual([]);
    expect(existsSync(directory)).toBe(false);
  });
});
