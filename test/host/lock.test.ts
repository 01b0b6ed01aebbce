/** One agent per data directory and per interface of a network namespace, with real processes. */
import { describe, expect, test } from "bun:test";
import { mkdir, rename, rm, symlink, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { systemClock } from "../../src/async.ts";
import {
  acquireFreeNetworks,
  findHeldNetworks,
  acquireInterfaceLock,
  acquireLocks,
  acquireSoon,
  findPlaceHolders,
  type AgentPlaces,
  type Places,
} from "../../src/host/lock.ts";
import { FakeClock } from "../fakes/clock.ts";
import { failure, onDisk, withDirectory } from "./temporary.ts";

const lockModule = join(import.meta.dir, "../../src/host/lock.ts");
const memoryModule = join(import.meta.dir, "../../src/host/closed-memory.ts");

interface Holding {
  readonly pid: number;
  /** Ends the process as a crash would. */
  readonly kill: () => Promise<void>;
}

/** Another process that holds the places; ended when `use` ends. `inNamespace`: with a network of its own. */
async function whileHeld<T>(
  places: AgentPlaces,
  use: (holding: Holding) => Promise<T> | T,
  { inNamespace = false, child = "" } = {},
): Promise<T> {
  const code = `
    import { acquireLocks } from ${JSON.stringify(lockModule)};
    acquireLocks(${JSON.stringify(places)});
    ${child}
    console.log(process.pid);
    setInterval(() => {}, 1000);`;
  const program = [process.execPath, "-e", code];
  const holder = Bun.spawn(inNamespace ? ["unshare", "-n", ...program] : program, {
    stdout: "pipe",
    stderr: "inherit",
  });
  try {
    const { value } = await holder.stdout.getReader().read();
    const pid = Number(new TextDecoder().decode(value));
    return await use({
      pid,
      kill: async () => {
        holder.kill("SIGKILL");
        await holder.exited;
      },
    });
  } finally {
    holder.kill("SIGKILL");
    await holder.exited;
  }
}

/** Places that no other test uses: the interface is never made, only its name is held. */
async function withPlaces(use: (places: Places, other: Places) => Promise<void>): Promise<void> {
  await withDirectory(async (directory) => {
    const places = { dataDirectory: join(directory, "one"), interfaceName: freshName() };
    const other = { dataDirectory: join(directory, "two"), interfaceName: freshName() };
    await mkdir(places.dataDirectory);
    await mkdir(other.dataDirectory);
    await use(places, other);
  });
}

function freshName(): string {
  return `t${crypto.getRandomValues(new Uint8Array(6)).toHex()}`;
}

/** Takes the places and lets go of them at once. */
function tryLocks(places: AgentPlaces): void {
  acquireLocks(places).release();
}

describe("acquireLocks()", () => {
  test("refuses a data directory that another process holds with 75, and names it", async () => {
    await withPlaces(async (places, other) => {
      await whileHeld(places, async ({ pid }) => {
        const { message, exit } = await failure(() =>
          acquireLocks({ ...other, dataDirectory: places.dataDirectory }),
        );
        expect(message).toStartWith(
          `Cannot use data directory "${places.dataDirectory}": process ${pid} ("${process.execPath.slice(0, 40)}`,
        );
        expect(message).toEndWith(") holds it");
        expect(message).toMatch(/^[\x20-\x7e…]+$/);
        expect(exit).toBe(75);
      });
    });
  });

  test("refuses an interface that another process holds with 75, names it, and lets go of the directory", async () => {
    await withPlaces(async (places, other) => {
      await whileHeld(places, async ({ pid }) => {
        const { message, exit } = await failure(() =>
          acquireLocks({ ...other, interfaceName: places.interfaceName }),
        );
        expect(message).toStartWith(`Cannot use interface "${places.interfaceName}": process ${pid} (`);
        expect(message).toEndWith(") holds it in this network namespace");
        expect(exit).toBe(75);
        tryLocks(other);
      });
    });
  });

  test("refuses a cluster network that another agent routes with 75, names it, and lets go of the rest", async () => {
    await withPlaces(async (places, other) => {
      // As text only: no other test routes it.
      const clusterNets = ["10.193.0.0/30", "fd10:c2::/64"];
      await whileHeld({ ...places, clusterNets }, async ({ pid }) => {
        const wanted = { ...other, clusterNets: ["10.194.0.0/30", "fd10:c2::/64"] };
        const { message, exit } = await failure(() => acquireLocks(wanted));
        expect(message).toStartWith(`Cannot route cluster network "fd10:c2::/64": process ${pid} (`);
        expect(exit).toBe(75);
        tryLocks({ ...wanted, clusterNets: ["10.194.0.0/30"] });
      });
    });
  });

  test("names the process that holds a directory also when its descriptors are closed to us, as an agent's are", async () => {
    await withPlaces(async (places, other) => {
      await whileHeld(
        places,
        async ({ pid }) => {
          const refusals = [];
          for (const tried of [
            { ...other, dataDirectory: places.dataDirectory },
            { ...other, interfaceName: places.interfaceName },
          ]) {
            const code = `
              import { acquireLocks } from ${JSON.stringify(lockModule)};
              try { acquireLocks(${JSON.stringify(tried)}); } catch (error) { console.log(error.exit, error.message); }`;
            const blind = ["setpriv", "--bounding-set", "-sys_ptrace,-perfmon,-sys_admin"];
            const child = Bun.spawn([...blind, process.execPath, "-e", code], { stdout: "pipe" });
            refusals.push((await child.stdout.text()).trim());
          }
          expect(refusals).toEqual([
            expect.stringMatching(
              new RegExp(`^75 Cannot use data directory .*: process ${pid} \\(".*\\) holds it$`),
            ) as unknown as string,
            `75 Cannot use interface "${places.interfaceName}": a process that cannot be seen from here holds it in this network namespace`,
          ]);
        },
        { child: `(await import(${JSON.stringify(memoryModule)})).closeMemory();` },
      );
    });
  });

  test("names the user of a process that is another's", async () => {
    await withPlaces(async (places, other) => {
      await whileHeld(
        places,
        async ({ pid }) => {
          const { message } = await failure(() =>
            acquireLocks({ ...other, interfaceName: places.interfaceName }),
          );
          expect(message).toStartWith(
            `Cannot use interface "${places.interfaceName}": process ${pid} of user 65534 ("`,
          );
        },
        { child: "process.setuid(65534);" },
      );
    });
  });

  test("lets two agents live with other directories and interfaces", async () => {
    await withPlaces(async (places, other) => {
      await whileHeld(places, () => tryLocks(other));
    });
  });

  test("lets one interface name be held once in each network namespace", async () => {
    await withPlaces(async (places, other) => {
      await whileHeld(places, () => tryLocks({ ...other, interfaceName: places.interfaceName }), {
        inNamespace: true,
      });
    });
  });

  test("knows a directory under another name", async () => {
    await withPlaces(async (places, other) => {
      const link = `${places.dataDirectory}-link`;
      await symlink(places.dataDirectory, link);
      await whileHeld(places, async () => {
        expect((await failure(() => acquireLocks({ ...other, dataDirectory: link }))).exit).toBe(75);
      });
    });
  });

  test("finds both free as soon as the holder is killed, though a program that it started lives on", async () => {
    await withPlaces(async (places) => {
      const pidFile = `${places.dataDirectory}.child`;
      const child = `
        const child = Bun.spawn(["sleep", "60"], { stdio: ["ignore", "ignore", "ignore"] });
        child.unref();
        await Bun.write(${JSON.stringify(pidFile)}, String(child.pid));`;
      await whileHeld(
        places,
        async ({ kill }) => {
          const childPid = Number(await Bun.file(pidFile).text());
          try {
            await kill();
            process.kill(childPid, 0);
            tryLocks(places);
          } finally {
            process.kill(childPid, "SIGKILL");
          }
        },
        { child },
      );
    });
  });

  test("can be released twice, and taken again", async () => {
    await withPlaces(async (places) => {
      const locks = acquireLocks(places);
      expect((await failure(() => acquireLocks(places))).exit).toBe(75);
      locks.release();
      locks.release();
      tryLocks(places);
    });
  });

  test("does not keep a process alive", async () => {
    await withPlaces(async (places) => {
      const code = `import { acquireLocks } from ${JSON.stringify(lockModule)}; acquireLocks(${JSON.stringify(places)});`;
      expect(await Bun.spawn([process.execPath, "-e", code], { stderr: "inherit" }).exited).toBe(0);
      tryLocks(places);
    });
  });

  test.each([
    { name: "is not there", make: async () => {}, reason: "ENOENT: no such file or directory" },
    { name: "is a file", make: (path: string) => writeFile(path, ""), reason: "ENOTDIR: not a directory" },
  ])("refuses a directory that $name with 78", async ({ make, reason }) => {
    await withPlaces(async (places) => {
      const dataDirectory = `${places.dataDirectory}-new`;
      await make(dataDirectory);
      const { message, exit } = await failure(() => acquireLocks({ ...places, dataDirectory }));
      expect({ message, exit }).toEqual({
        message: `Cannot use data directory "${dataDirectory}": ${reason}`,
        exit: 78,
      });
    });
  });

  test("holds a directory on a read-only disk", async () => {
    const result = await onDisk({
      mount: "size=64k",
      prepare: "mount -o remount,ro .",
      code: `
        import { acquireLocks } from "SRC/host/lock.ts";
        const places = { dataDirectory: process.cwd(), interfaceName: "${freshName()}" };
        acquireLocks(places);
        let exit;
        try { acquireLocks({ ...places, interfaceName: "${freshName()}" }); } catch (error) { exit = error.exit; }
        export default exit;`,
    });
    expect(result).toBe(75);
  });
});

describe("Locks.renew()", () => {
  test("holds the directory that was made in place of the one that vanished, and frees it at the end", async () => {
    await withPlaces(async (places, other) => {
      const locks = acquireLocks(places);
      await rm(places.dataDirectory, { recursive: true });
      await mkdir(places.dataDirectory);
      const again = { ...other, dataDirectory: places.dataDirectory };
      tryLocks(again);
      locks.renew();
      locks.renew();
      expect((await failure(() => acquireLocks(again))).exit).toBe(75);
      locks.release();
      tryLocks(again);
    });
  });

  test("keeps what it holds when the new directory is another agent's", async () => {
    await withPlaces(async (places, other) => {
      const locks = acquireLocks(places);
      const moved = `${places.dataDirectory}-moved`;
      await rename(places.dataDirectory, moved);
      await mkdir(places.dataDirectory);
      await whileHeld({ ...other, dataDirectory: places.dataDirectory }, async () => {
        expect((await failure(() => locks.renew())).exit).toBe(75);
        const elsewhere = { dataDirectory: moved, interfaceName: freshName() };
        expect((await failure(() => acquireLocks(elsewhere))).exit).toBe(75);
      });
      locks.release();
    });
  });
});

describe("acquireFreeNetworks()", () => {
  test("takes what no agent routes until it is released, and names who routes the others", async () => {
    await withPlaces(async (places, other) => {
      const [mine, theirs] = ["10.195.0.0/30", "10.195.0.4/30"];
      await whileHeld({ ...places, clusterNets: [theirs] }, async ({ pid }) => {
        const { held, release } = acquireFreeNetworks([mine, theirs]);
        expect(held).toEqual([
          {
            network: theirs,
            holder: expect.stringMatching(new RegExp(`^process ${pid} \\(`)),
          },
        ]);
        const wanted = { ...other, clusterNets: [mine] };
        expect((await failure(() => acquireLocks(wanted))).exit).toBe(75);
        release();
        tryLocks(wanted);
      });
    });
  });
});

describe("acquireSoon()", () => {
  test("takes places of a large process in the instant in which it is killed", async () => {
    await withPlaces(async (places) => {
      const child = "globalThis.kept = Buffer.alloc(400e6, 1);";
      await whileHeld(
        places,
        async ({ pid }) => {
          process.kill(pid, "SIGKILL");
          const until = { clock: systemClock, signal: new AbortController().signal };
          const locks = await acquireSoon(() => acquireLocks(places), until);
          expect(locks).toBeDefined();
          locks?.release();
        },
        { child },
      );
    });
  });

  test("refuses at once what a process holds that lives, and tries nothing when it is to stop", async () => {
    await withPlaces(async (places) => {
      await whileHeld(places, async ({ pid }) => {
        const clock = new FakeClock();
        const { signal } = new AbortController();
        const { message, exit } = await failure(() =>
          acquireSoon(() => acquireLocks(places), { clock, signal }),
        );
        expect(exit).toBe(75);
        expect(message).toContain(`process ${pid} (`);
        expect(clock.sleeps).toEqual([]);
      });
      const stopped = { clock: new FakeClock(), signal: AbortSignal.abort() };
      expect(await acquireSoon(() => acquireLocks(places), stopped)).toBeUndefined();
      tryLocks(places);
    });
  });

  test("waits 2 s for a process that cannot be seen, until it lets go or the wait is stopped", async () => {
    await withPlaces(async (places) => {
      await whileHeld(places, async ({ kill }) => {
        const code = `
          import { acquireLocks, acquireSoon } from ${JSON.stringify(lockModule)};
          let nowMs = 0;
          let stop = new AbortController();
          let asleep = () => {};
          const clock = { nowMs: () => nowMs, sleep: async (ms) => { nowMs += ms; await asleep(); } };
          const soon = () => acquireSoon(() => acquireLocks(${JSON.stringify(places)}), { clock, signal: stop.signal });
          await soon().catch(({ message }) => console.log(nowMs, message));
          asleep = () => stop.abort();
          console.log(await soon());
          stop = new AbortController();
          asleep = async () => { if (nowMs === 2040) { console.log("waits"); await console[Symbol.asyncIterator]().next(); } };
          console.log((await soon()) !== undefined);`;
        // Of a PID namespace of its own, which shows no process of this one.
        const argv = ["unshare", "-p", "-f", "--mount-proc", process.execPath, "-e", code];
        const child = Bun.spawn(argv, { stdin: "pipe", stdout: "pipe", stderr: "inherit" });
        let said = "";
        for await (const piece of child.stdout) {
          said += new TextDecoder().decode(piece);
          if (!said.endsWith("waits\n")) continue;
          await kill();
          void child.stdin.write("go on\n");
          await child.stdin.end();
        }
        await child.exited;
        expect(said.split("\n")).toEqual([
          expect.stringMatching(/^2000 .*a process that cannot be seen from here holds it/),
          "undefined",
          "waits",
          "true",
          "",
        ]);
      });
    });
  });
});

test("findHeldNetworks() names what an agent routes, and takes nothing", async () => {
  await withPlaces(async (places) => {
    const network = "10.195.0.8/30";
    expect(findHeldNetworks().has(network)).toBe(false);
    await whileHeld({ ...places, clusterNets: [network] }, async () => {
      expect(findHeldNetworks().has(network)).toBe(true);
      expect(findHeldNetworks().has(places.interfaceName)).toBe(false);
    });
    tryLocks({ ...places, clusterNets: [network] });
  });
});

test.each([
  { name: "those of who holds the directory", same: ["dataDirectory"], want: ["10.195.0.16/30"] },
  { name: "those of who holds the interface", same: ["interfaceName"], want: ["10.195.0.16/30"] },
  { name: "those of who holds both", same: ["dataDirectory", "interfaceName"], want: ["10.195.0.16/30"] },
  { name: "nobody's, where neither is held", same: [], want: ["10.195.0.12/30", "10.195.0.16/30"] },
] as const)("findHeldNetworks() leaves out $name", async ({ same, want }) => {
  await withPlaces(async (places, other) => {
    const theirs = { dataDirectory: dirname(other.dataDirectory), interfaceName: freshName() };
    const besides = { ...other, ...Object.fromEntries(same.map((place) => [place, places[place]])) };
    await whileHeld({ ...places, clusterNets: ["10.195.0.12/30"] }, async () => {
      await whileHeld({ ...theirs, clusterNets: ["10.195.0.16/30"] }, () => {
        const found = [...findHeldNetworks(besides)].filter((network) => network.startsWith("10.195.0.1"));
        expect(found.toSorted()).toEqual([...want]);
      });
    });
  });
});

const remedies = { name: (flag: string): string => `another with ${flag}` };

describe("acquireInterfaceLock()", () => {
  test("refuses an interface that another process holds with 75, and names it", async () => {
    await withPlaces(async (places) => {
      await whileHeld(places, async ({ pid }) => {
        const { message, exit } = await failure(() => acquireInterfaceLock(places.interfaceName, remedies));
        expect(message).toStartWith(`Cannot use interface "${places.interfaceName}": process ${pid} (`);
        expect(exit).toBe(75);
      });
    });
  });

  test("holds the interface, and no other whose name only begins like it, until it is released", async () => {
    await withPlaces(async (places) => {
      const lock = acquireInterfaceLock(places.interfaceName, remedies);
      expect((await failure(() => acquireLocks(places))).message).toContain(`process ${process.pid} (`);
      tryLocks({ ...places, interfaceName: `${places.interfaceName}x` });
      lock.release();
      lock.release();
      tryLocks(places);
    });
  });
});

describe("findPlaceHolders()", () => {
  test("names whoever holds an interface in this network namespace, and the directory that it holds besides", async () => {
    await withPlaces(async (places, other) => {
      const ofTest = () =>
        findPlaceHolders().filter(({ interfaceName }) =>
          [places.interfaceName, other.interfaceName].includes(interfaceName),
        );
      await whileHeld({ ...places, clusterNets: ["10.195.0.8/30"] }, async ({ pid }) => {
        await whileHeld(
          other,
          () => {
            expect(ofTest()).toEqual([
              {
                ...places,
                holder: expect.stringMatching(new RegExp(`^process ${pid} \\(`)),
              },
            ]);
          },
          { inNamespace: true },
        );
      });
      expect(ofTest()).toEqual([]);
    });
  });
});
