/**
 * Which pages are given back, what the kernel may refuse, and in a process of its own that it goes on with less memory.
 */
import { expect, test } from "bun:test";
import { join } from "node:path";
import { giveBackProgramPages, untouchedMappings } from "../../src/host/program-pages.ts";

const EINVAL = 22;
const program = "/usr/local/bin/clusternet";

interface Mapping {
  readonly range?: string;
  readonly permissions?: string;
  readonly path?: string;
  readonly dirty?: number;
  readonly anonymous?: number;
  readonly swap?: number;
}

/** As the kernel shows it, less the fields that tell nothing here. */
function smapsOf(...mappings: readonly Mapping[]): string {
  return mappings
    .map(
      ({
        range = "00200000-00203000",
        permissions = "r-xp",
        path = program,
        dirty = 0,
        anonymous = 0,
        swap = 0,
      }) =>
        `${range} ${permissions} 00000000 fe:00 9977871                            ${path}\n` +
        `Size:                 12 kB\nRss:                   8 kB\nPrivate_Clean:         8 kB\n` +
        `Private_Dirty:  ${String(dirty).padStart(8)} kB\nAnonymous:      ${String(anonymous).padStart(8)} kB\n` +
        `AnonHugePages:         0 kB\nSwap:           ${String(swap).padStart(8)} kB\nSwapPss:               0 kB\n` +
        "VmFlags: rd ex mr mw me sd \n",
    )
    .join("");
}

const whole = { start: 0x20_0000, length: 0x3000 };

test.each([
  { name: "takes code", smaps: smapsOf({}), want: [whole] },
  { name: "takes constants", smaps: smapsOf({ permissions: "r--p" }), want: [whole] },
  {
    name: "takes each of several",
    smaps: smapsOf({}, { range: "7f0000000000-7f0000001000" }),
    want: [whole, { start: 0x7f00_0000_0000, length: 0x1000 }],
  },
  { name: "leaves what can be written", smaps: smapsOf({ permissions: "rw-p" }), want: [] },
  { name: "leaves what cannot be read", smaps: smapsOf({ permissions: "---p" }), want: [] },
  { name: "leaves what is shared", smaps: smapsOf({ permissions: "r--s" }), want: [] },
  { name: "leaves what was written before it was closed", smaps: smapsOf({ dirty: 12 }), want: [] },
  { name: "leaves what has pages that are not the file's", smaps: smapsOf({ anonymous: 4 }), want: [] },
  { name: "leaves what was written and is swapped out", smaps: smapsOf({ swap: 4 }), want: [] },
  { name: "leaves other files", smaps: smapsOf({ path: "/lib/libc.so.6" }), want: [] },
  { name: "leaves files with a longer name", smaps: smapsOf({ path: `${program}.so` }), want: [] },
  { name: "leaves memory of no file", smaps: smapsOf({ path: "" }), want: [] },
  {
    name: "leaves what does not say how it is",
    smaps: `00200000-00203000 r-xp 00000000 fe:00 1 ${program}\nSize: 12 kB\n`,
    want: [],
  },
  { name: "makes nothing of another text", smaps: "Size: 12 kB\n\u0000 r-xp\n", want: [] },
])("untouchedMappings() $name", ({ smaps, want }) => {
  expect(untouchedMappings(smaps, program)).toEqual(want);
});

test.each<{
  name: string;
  errno: number;
  readMappings: () => string;
  calls: number;
  told: readonly string[];
}>([
  {
    name: "asks for each mapping, and says nothing",
    errno: 0,
    readMappings: () => smapsOf({}, {}),
    calls: 2,
    told: [],
  },
  {
    name: "says what the kernel refuses",
    errno: EINVAL,
    readMappings: () => smapsOf({}),
    calls: 1,
    told: ["Cannot give pages of the executable back: madvise errno 22"],
  },
  {
    name: "says so where the mappings cannot be read",
    errno: 0,
    readMappings: () => {
      throw new Error("ENOENT: no such file");
    },
    calls: 0,
    told: ["Cannot find the pages of the executable: ENOENT: no such file"],
  },
])("giveBackProgramPages() $name", ({ errno, readMappings, calls, told }) => {
  const asked: unknown[] = [];
  const libc = {
    madvise: (...call: readonly number[]) => {
      asked.push(call);
      return errno;
    },
  };
  expect(giveBackProgramPages({ libc, readMappings, readProgram: () => program })).toEqual([...told]);
  expect(asked).toEqual(Array.from({ length: calls }, () => [whole.start, whole.length, 4]));
});

test("giveBackProgramPages() makes a process smaller that then works as before", async () => {
  const script = `
    import { readFileSync } from "node:fs";
    import { giveBackProgramPages } from ${JSON.stringify(join(import.meta.dir, "../../src/host/program-pages.ts"))};
    const kilobytes = () => Number(/RssFile:\\s+(\\d+)/.exec(readFileSync("/proc/self/status", "utf8"))[1]);
    const work = () => [Bun.hash("x"), Bun.gzipSync("x".repeat(100)).length, new URL("http://a/b").host].join();
    const done = work();
    const before = kilobytes();
    const told = giveBackProgramPages();
    console.log(JSON.stringify({ told, given: before - kilobytes(), same: work() === done }));`;
  const child = Bun.spawn([process.execPath, "-e", script], {
    stdin: "ignore",
    stdout: "pipe",
    stderr: "inherit",
  });
  const said: unknown = JSON.parse(await child.stdout.text());
  expect(await child.exited).toBe(0);
  // Some 20 MB are mapped by then; what this needs to go on comes back at once.
  expect(said).toEqual({ told: [], given: expect.any(Number), same: true });
  expect((said as { given: number }).given).toBeGreaterThan(5_000);
});
