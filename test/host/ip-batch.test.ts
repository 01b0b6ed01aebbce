/**
 * Readings that come together are one process, tell what single ones would, and fail as single ones do; with an `ip` of
 * the test's own, and with the real one in a network namespace.
 */
import { describe, expect, test } from "bun:test";
import { CommandError } from "../../src/errors.ts";
import { createRunCommand, type RunCommand } from "../../src/host/command.ts";
import { batchIp, ipReading } from "../../src/host/ip-batch.ts";

const links = ipReading("address show");
const route = ipReading("route show table main root 10.192.0.0/11");
const route6 = ipReading("route show table main root fd00::/16", 6);
const way = ipReading("route get 192.0.2.9");

/** Answers "[the words]" in a line for each reading, and writes down what it is asked; `odd` answers otherwise. */
function fakeIp(odd: (command: string) => string | undefined = () => undefined) {
  const asked: string[] = [];
  const run: RunCommand = async (argv, { input } = {}) => {
    const command = [...argv, ...(input === undefined ? [] : ["<<<", input])].join(" ");
    asked.push(command);
    const lines = input?.trimEnd().split("\n") ?? [argv.join(" ").replace("ip -N -j -d ", "")];
    return odd(command) ?? lines.map((line) => `["${line}"]\n`).join("");
  };
  return { run: batchIp(run), asked };
}

const outcomes = async (readings: readonly Promise<string>[]): Promise<readonly string[]> =>
  (await Promise.allSettled(readings)).map((each) =>
    each.status === "fulfilled" ? each.value.trim() : (each.reason as Error).message,
  );

const together = "ip -N -j -d -batch - <<< address show\nroute get 192.0.2.9\n";
const singly = ["ip -N -j -d address show", "ip -N -j -d route get 192.0.2.9"];
const both = ['["address show"]', '["route get 192.0.2.9"]'];

describe("batchIp()", () => {
  test.each<{ name: string; readings: readonly (readonly string[])[]; asked: readonly string[] }>([
    { name: "one reading alone", readings: [links], asked: [singly[0] ?? ""] },
    { name: "several in one process", readings: [links, way], asked: [together] },
    { name: "what is asked twice once", readings: [links, way, links], asked: [together] },
    { name: "the same thing twice as one", readings: [links, links], asked: [singly[0] ?? ""] },
    {
      name: "what is of IPv6 by itself",
      readings: [links, route6, way],
      asked: [together, "ip -N -j -d -6 route show table main root fd00::/16"],
    },
    {
      name: "at once what is no reading",
      readings: [
        links,
        ["ip", "link", "add", "a"],
        [...links.slice(0, 4), "address", "add", "a"],
        ["wg", "show"],
        way,
      ],
      asked: ["ip link add a", "ip -N -j -d address add a", "wg show", together],
    },
    {
      name: "by itself what a batch would take apart",
      readings: [links, [...links.slice(0, 4), "route", "get", "a b"], way],
      asked: ["ip -N -j -d route get a b", together],
    },
  ])("makes $name", async ({ readings, asked }) => {
    const ip = fakeIp();
    await Promise.all(readings.map((argv) => ip.run(argv)));
    expect(ip.asked).toEqual([...asked]);
  });

  test.each<{
    name: string;
    odd: (command: string) => string | undefined;
    told: readonly string[];
    asked: readonly string[];
  }>([
    { name: "gives each its own answer", odd: () => undefined, told: both, asked: [together] },
    {
      name: "makes each by itself when one fails, and tells what is wrong with that one",
      odd: (command) => {
        if (command.endsWith("get 192.0.2.9") || command.includes("-batch")) throw refusal(command);
        return undefined;
      },
      told: ['["address show"]', 'Cannot run "ip -N -j -d route get 192.0.2.9": exit code 2'],
      asked: [together, ...singly],
    },
    {
      name: "makes each by itself when an answer is missing",
      odd: (command) => (command.includes("-batch") ? "[]\n" : undefined),
      told: both,
      asked: [together, ...singly],
    },
    {
      name: "makes each by itself when the last answer is cut off",
      odd: (command) => (command.includes("-batch") ? "[]\n[" : undefined),
      told: both,
      asked: [together, ...singly],
    },
    {
      name: "makes each by itself when there are more answers than questions",
      odd: (command) => (command.includes("-batch") ? "[]\n[]\n[]\n" : undefined),
      told: both,
      asked: [together, ...singly],
    },
    {
      name: "waits for no program again that hung",
      odd: (command) => {
        throw new CommandError(`Cannot run "${command.slice(0, 21)}": still running after 10 s`, {
          argv: [],
        });
      },
      told: Array.from({ length: 2 }, () => 'Cannot run "ip -N -j -d -batch - ": still running after 10 s'),
      asked: [together],
    },
  ])("$name", async ({ odd, told, asked }) => {
    const ip = fakeIp(odd);
    expect(await outcomes([ip.run(links), ip.run(way)])).toEqual([...told]);
    expect(ip.asked).toEqual([...asked]);
  });

  test("makes what is to end at different times apart, and what comes later anew", async () => {
    const { signal } = new AbortController();
    const ip = fakeIp();
    await Promise.all([ip.run(links, { signal }), ip.run(way), ip.run(route, { signal })]);
    await ip.run(links);
    expect(ip.asked).toEqual([
      "ip -N -j -d -batch - <<< address show\nroute show table main root 10.192.0.0/11\n",
      singly[1] ?? "",
      singly[0] ?? "",
    ]);
  });

  test("ends a program that hangs, and says what it was to show", async () => {
    const run = batchIp((argv, options) =>
      createRunCommand()(["/bin/sh", "-c", "exec sleep 60", "ip", ...argv.slice(1)], {
        ...options,
        timeoutMs: 100,
      }),
    );
    const want = expect.stringMatching(
      /^Cannot run ".*-batch - <<< address show; route get 192\.0\.2\.9": still running after 0\.1 s, so it was ended$/,
    );
    expect(await outcomes([run(links), run(way)])).toEqual([want, want]);
  });

  test("shows with the real ip what single readings show", async () => {
    const readings = [
      links,
      route,
      way,
      ipReading("route show default"),
      route6,
      ipReading("route show default", 6),
    ];
    const script = `
      import { createRunCommand } from "${import.meta.dir}/../../src/host/command.ts";
      import { batchIp } from "${import.meta.dir}/../../src/host/ip-batch.ts";
      const one = createRunCommand();
      let calls = 0;
      const many = batchIp((argv, options) => (calls++, one(argv, options)));
      const readings = ${JSON.stringify(readings)};
      const show = async (run) => await Promise.all(readings.map(async (argv) => JSON.parse(await run(argv))));
      console.log(JSON.stringify({ single: await show(one), batch: await show(many), calls }));`;
    const shell = `set -e
      ip link set lo up
      ip link add v0 type veth peer name v1
      ip address add 192.0.2.1/24 dev v0
      ip address add 2001:db8::1/64 dev v0 nodad
      ip link set v0 up
      ip link set v1 up
      ip route add default via 192.0.2.254
      ip -6 route add default via 2001:db8::fe
      ip route add unreachable 10.192.0.0/11
      ip route add unreachable fd00::/16
      exec "$@"`;
    const child = Bun.spawn(["unshare", "-n", "sh", "-c", shell, "sh", process.execPath, "-e", script], {
      stdout: "pipe",
      stderr: "inherit",
    });
    const { single, batch, calls } = (await child.stdout.json()) as {
      readonly single: readonly unknown[][];
      readonly batch: readonly unknown[][];
      readonly calls: number;
    };
    expect(await child.exited).toBe(0);
    expect(batch).toEqual(single);
    // What there is of each; the four of IPv4 in one process, the two of IPv6 in another.
    expect({ shown: single.map((each) => each.length), calls }).toEqual({
      shown: [3, 1, 1, 1, 1, 1],
      calls: 2,
    });
  });
});

function refusal(command: string): CommandError {
  return new CommandError(`Cannot run "${command}": exit code 2`, { argv: command.split(" "), exitCode: 2 });
}
