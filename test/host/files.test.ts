/** Files that survive a power loss, on real and on failing disks. */
import { describe, expect, test } from "bun:test";
import { closeSync, fsyncSync, openSync, readFileSync, readdirSync } from "node:fs";
import { chmod, lstat, mkdir, readFile, readdir, rm, symlink, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import {
  KeptFile,
  bindPrivateSocket,
  ensurePrivateDirectory,
  makeFile,
  readRegularFile,
  removeLeftovers,
  replaceFile,
  socketPath,
  stampAt,
  syncDirectoryNow,
  type Content,
} from "../../src/host/files.ts";
import { silentLogger } from "../../src/log.ts";
import { failure, octal, onDisk, withDirectory } from "./temporary.ts";

/** Names in the directory with mode and text, sorted. */
async function listing(directory: string): Promise<string[]> {
  const names = (await readdir(directory)).toSorted();
  return await Promise.all(
    names.map(async (name) => {
      const path = join(directory, name);
      const stats = await lstat(path);
      return `${name} ${octal(stats.mode)} ${stats.isFile() ? await readFile(path, "utf8") : "no file"}`;
    }),
  );
}

async function makeFifo(path: string): Promise<void> {
  await Bun.spawn(["mkfifo", path]).exited;
}

function withMask<T>(mask: number, use: () => Promise<T>): Promise<T> {
  const before = process.umask(mask);
  return use().finally(() => process.umask(before));
}

describe("replaceFile()", () => {
  test.each([
    { name: "makes a file", before: undefined, mode: 0o600, umask: 0o022, want: "f 600 new" },
    { name: "replaces a file and its mode", before: 0o644, mode: 0o600, umask: 0o022, want: "f 600 new" },
    {
      name: "gives the mode asked for under a strict umask",
      before: undefined,
      mode: 0o644,
      umask: 0o077,
      want: "f 644 new",
    },
    {
      name: "gives no more than the mode asked for under no umask",
      before: undefined,
      mode: 0o600,
      umask: 0,
      want: "f 600 new",
    },
  ])("$name", async ({ before, mode, umask, want }) => {
    await withDirectory(async (directory) => {
      const path = join(directory, "f");
      if (before !== undefined) await writeFile(path, "older and longer", { mode: before });
      await withMask(umask, () => replaceFile(path, "new", mode));
      expect(await listing(directory)).toEqual([want]);
    });
  });

  test("says by which stamp the file is known", async () => {
    await withDirectory(async (directory) => {
      const path = join(directory, "f");
      const stamp = await replaceFile(path, "new", 0o600);
      expect(await stampAt(path)).toBe(stamp);
      // As `cp -p` of a file of the same length.
      const { mtime } = await lstat(path);
      await writeFile(path, "old");
      await utimes(path, mtime, mtime);
      expect(await stampAt(path)).not.toBe(stamp);
      await rm(path);
      expect(await stampAt(path)).toBeUndefined();
    });
  });

  test("tells when the disk alone is waited for: all is written, and nothing has the name yet", async () => {
    await withDirectory(async (directory) => {
      const seen: string[] = [];
      await replaceFile(join(directory, "f"), "new", 0o600, () => {
        const [name = "", ...others] = readdirSync(directory);
        seen.push(`${name === "f"} ${readFileSync(join(directory, name), "utf8")} ${others.length}`);
      });
      expect(seen).toEqual(["false new 0"]);
    });
  });

  test("writes a text of 2 MB whole", async () => {
    await withDirectory(async (directory) => {
      const text = "0123456789ü\n".repeat(170_000);
      await replaceFile(join(directory, "f"), text, 0o600);
      expect((await readFile(join(directory, "f"), "utf8")) === text).toBe(true);
    });
  });

  test.each([
    { name: "a directory", make: (path: string) => mkdir(path), found: "it is a directory" },
    {
      name: "a symbolic link",
      make: (path: string) => symlink("elsewhere", path),
      found: "it is a symbolic link",
    },
    { name: "a named pipe", make: makeFifo, found: "it is a named pipe" },
  ])("refuses to take the place of $name, and leaves no temporary file", async ({ make, found }) => {
    await withDirectory(async (directory) => {
      const path = join(directory, "f");
      await make(path);
      expect(await failure(() => replaceFile(path, "new", 0o600))).toEqual({
        message: `Cannot write "${path}": ${found}, expected a regular file`,
        exit: 1,
        hint: "Remove it: the file is then made anew",
      });
      expect(await readdir(directory)).toEqual(["f"]);
    });
  });

  test("says that the directory is gone", async () => {
    await withDirectory(async (directory) => {
      const path = join(directory, "gone", "f");
      expect((await failure(() => replaceFile(path, "new", 0o600))).message).toBe(
        `Cannot write "${path}": ENOENT: no such file or directory`,
      );
    });
  });

  test("keeps the old content whole on a full disk, also of a text that fits in part, and works once there is room", async () => {
    const result = await onDisk({
      mount: "size=64k",
      prepare: "printf old > f; head -c 30000 /dev/zero > ballast",
      code: `
        import { replaceFile } from "SRC/host/files.ts";
        import { readFileSync, readdirSync, rmSync } from "node:fs";
        const path = process.cwd() + "/f";
        const failed = await replaceFile(path, "x".repeat(60_000), 0o600).catch((error) => error.message);
        const after = [failed.replace(process.cwd(), "D"), readFileSync("f", "utf8"), readdirSync(".").sort()];
        rmSync("ballast");
        await replaceFile(path, "x".repeat(30_000), 0o600);
        export default [...after, readFileSync("f", "utf8").length];`,
    });
    expect(result).toEqual([
      `Cannot write "D/f": ENOSPC: no space left on device`,
      "old",
      ["ballast", "f"],
      30_000,
    ]);
  });

  test("keeps the old content on a read-only disk", async () => {
    const result = await onDisk({
      mount: "size=64k",
      prepare: "printf old > f; mount -o remount,ro .",
      code: `
        import { replaceFile } from "SRC/host/files.ts";
        import { readFileSync } from "node:fs";
        const failed = await replaceFile(process.cwd() + "/f", "new", 0o600).catch((error) => error.message);
        export default [failed.replace(process.cwd(), "D"), readFileSync("f", "utf8")];`,
    });
    expect(result).toEqual([`Cannot write "D/f": EROFS: read-only file system`, "old"]);
  });

  test("shows a reader only whole texts while it writes", async () => {
    await withDirectory(async (directory) => {
      const path = join(directory, "f");
      const texts = ["a".repeat(100_000), "b".repeat(50_000)];
      await replaceFile(path, texts[0] ?? "", 0o600);
      const written = new AbortController();
      const writer = (async () => {
        for (let turn = 1; turn <= 40; turn++) await replaceFile(path, texts[turn % 2] ?? "", 0o600);
        written.abort();
      })();
      const torn: number[] = [];
      while (!written.signal.aborted) {
        const seen = await readFile(path, "utf8");
        if (!texts.includes(seen)) torn.push(seen.length);
      }
      await writer;
      expect(torn).toEqual([]);
    });
  });
});

describe("makeFile()", () => {
  test("makes a file that was not there", async () => {
    await withDirectory(async (directory) => {
      expect(await withMask(0, () => makeFile(join(directory, "f"), "new", 0o600))).toBe(true);
      expect(await listing(directory)).toEqual(["f 600 new"]);
    });
  });

  test.each([
    { name: "a file, even an empty one", make: (path: string) => writeFile(path, "") },
    { name: "a dangling symbolic link", make: (path: string) => symlink("nowhere", path) },
    { name: "a directory", make: (path: string) => mkdir(path) },
  ])("leaves $name as it is", async ({ make }) => {
    await withDirectory(async (directory) => {
      const path = join(directory, "f");
      await make(path);
      const before = await lstat(path, { bigint: true });
      expect(await makeFile(path, "new", 0o600)).toBe(false);
      const after = await lstat(path, { bigint: true });
      expect([after.ino, after.mtimeNs, after.size]).toEqual([before.ino, before.mtimeNs, before.size]);
      expect(await readdir(directory)).toEqual(["f"]);
    });
  });

  test("lets one of many that make the same file at once win, whole", async () => {
    await withDirectory(async (directory) => {
      const path = join(directory, "f");
      const texts = Array.from({ length: 20 }, (_, index) => `${index}`.repeat(1000));
      const made = await Promise.all(texts.map((text) => makeFile(path, text, 0o600)));
      expect(made.filter(Boolean)).toEqual([true]);
      expect(await readFile(path, "utf8")).toBe(texts[made.indexOf(true)] ?? "");
      expect(await readdir(directory)).toEqual(["f"]);
    });
  });

  test("leaves no file, not even an empty one, on a full disk", async () => {
    const result = await onDisk({
      mount: "size=16k",
      prepare: "head -c 20000 /dev/zero > ballast 2>/dev/null || true",
      code: `
        import { makeFile } from "SRC/host/files.ts";
        import { readdirSync } from "node:fs";
        const failed = await makeFile(process.cwd() + "/f", "new", 0o600).catch((error) => error.message);
        export default [failed.replace(process.cwd(), "D"), readdirSync(".")];`,
    });
    expect(result).toEqual([`Cannot write "D/f": ENOSPC: no space left on device`, ["ballast"]]);
  });
});

test("removeLeftovers() takes away what a crash left half written, and nothing else", async () => {
  await withDirectory(async (directory) => {
    const left = ".private.key.0123456789abcdef.clusternet-tmp";
    const keep = [".hidden", ".x.0123456789abcde.clusternet-tmp", "f", "x.0123456789abcdef.clusternet-tmp"];
    for (const name of [left, ...keep]) await writeFile(join(directory, name), "");
    await removeLeftovers(directory, silentLogger);
    expect((await readdir(directory)).toSorted()).toEqual(keep);
  });
});

test("removeLeftovers() names each that it could not take away, takes all others, and throws nothing", async () => {
  await withDirectory(async (directory) => {
    const names = Array.from("0123456789", (digit) => `.private.key.${digit.repeat(16)}.clusternet-tmp`);
    for (const name of names) await writeFile(join(directory, name), "");
    const stuck = names.filter((_, index) => index % 4 === 1).map((name) => join(directory, name));
    for (const path of stuck) {
      await rm(path);
      // Which unlink refuses.
      await mkdir(path);
    }
    const told: (readonly [message: string, fields: unknown])[] = [];
    const log = { warn: (message: string, fields?: unknown) => told.push([message, fields]) };
    await removeLeftovers(directory, log);
    const message = "Cannot remove what a crash may have left in the data directory";
    const reason = expect.stringMatching(/^E(ISDIR|PERM): [a-z ]+$/);
    expect(told).toHaveLength(stuck.length);
    expect(told).toEqual(expect.arrayContaining(stuck.map((path) => [message, { path, reason }])));
    expect((await readdir(directory)).map((name) => join(directory, name)).toSorted()).toEqual(stuck);
    told.length = 0;
    await removeLeftovers(join(directory, "gone"), log);
    const gone = { directory: join(directory, "gone"), reason: "ENOENT: no such file or directory" };
    expect(told).toEqual([[message, gone]]);
  });
});

test("a process killed at any instant of a write leaves the old content or the new, and what it leaves is cleaned up", async () => {
  await withDirectory(async (directory) => {
    const path = join(directory, "f");
    await writeFile(path, "old");
    const code = `
      import { replaceFile } from ${JSON.stringify(join(import.meta.dir, "../../src/host/files.ts"))};
      console.log("started");
      for (let turn = 0; ; turn++) await replaceFile(${JSON.stringify(path)}, "new" + "x".repeat(300_000), 0o600);`;
    for (let turn = 0; turn < 5; turn++) {
      const child = Bun.spawn([process.execPath, "-e", code], { stdout: "pipe", stderr: "inherit" });
      const reader = child.stdout.getReader();
      await reader.read();
      await Bun.sleep(turn * 3);
      child.kill("SIGKILL");
      await child.exited;
      const text = await readFile(path, "utf8");
      expect(text === "old" || text === `new${"x".repeat(300_000)}`).toBe(true);
    }
    await removeLeftovers(directory, silentLogger);
    expect(await readdir(directory)).toEqual(["f"]);
  });
});

describe("ensurePrivateDirectory()", () => {
  test("makes it and its parents, mode 0700 whatever the umask", async () => {
    await withDirectory(async (directory) => {
      const path = join(directory, "a", "b");
      await withMask(0o277, () =>
        mkdir(join(directory, "a"), { mode: 0o755 }).then(() => chmod(join(directory, "a"), 0o755)),
      );
      await withMask(0o277, () => ensurePrivateDirectory(path));
      expect(octal((await lstat(path)).mode)).toBe("700");
      await ensurePrivateDirectory(join(directory, "c", "d", "e"));
      expect(octal((await lstat(join(directory, "c", "d", "e"))).mode)).toBe("700");
    });
  });

  test.each([
    { name: "a directory", make: (path: string) => mkdir(path, { mode: 0o750 }), mode: "750" },
    { name: "a symbolic link to a directory", make: (path: string) => symlink("/tmp", path), mode: "777" },
  ])("leaves $name that is there as it is", async ({ make, mode }) => {
    await withDirectory(async (directory) => {
      const path = join(directory, "d");
      await make(path);
      await ensurePrivateDirectory(path);
      expect(octal((await lstat(path)).mode)).toBe(mode);
    });
  });

  test.each([
    { name: "a file is there", path: "file", found: "something other than a directory is there or above it" },
    {
      name: "a dangling symbolic link is there",
      path: "link",
      found: "something other than a directory is there or above it",
    },
    {
      name: "a parent is a file",
      path: "file/d",
      found: "something other than a directory is there or above it",
    },
  ])("refuses with 78 when $name", async ({ path, found }) => {
    await withDirectory(async (directory) => {
      await writeFile(join(directory, "file"), "");
      await symlink("nowhere", join(directory, "link"));
      const full = join(directory, path);
      const { message, exit } = await failure(() => ensurePrivateDirectory(full));
      expect({ message, exit }).toEqual({
        message: `Cannot make data directory "${full}": ${found}`,
        exit: 78,
      });
    });
  });

  test("takes one that is there on a read-only disk, and refuses with 78 to make one", async () => {
    const result = await onDisk({
      mount: "size=64k",
      prepare: "mkdir there; mount -o remount,ro .",
      code: `
        import { ensurePrivateDirectory } from "SRC/host/files.ts";
        await ensurePrivateDirectory(process.cwd() + "/there");
        const failed = await ensurePrivateDirectory(process.cwd() + "/new").catch((error) => error);
        export default [failed.message.replace(process.cwd(), "D"), failed.exit];`,
    });
    expect(result).toEqual([`Cannot make data directory "D/new": EROFS: read-only file system`, 78]);
  });
});

describe("socketPath()", () => {
  test.each([
    {
      name: "takes 107 bytes",
      directory: `/${"d".repeat(90)}`,
      interfaceName: "clusternet",
      exit: undefined,
    },
    {
      name: "refuses 108 bytes with 78",
      directory: `/${"d".repeat(91)}`,
      interfaceName: "clusternet",
      exit: 78,
    },
    {
      name: "counts bytes, not characters",
      directory: `/${"ü".repeat(50)}`,
      interfaceName: "clusternet",
      exit: 78,
    },
  ])("$name", async ({ directory, interfaceName, exit }) => {
    if (exit === undefined) {
      expect(socketPath(directory, interfaceName)).toBe(`${directory}/${interfaceName}.sock`);
    } else {
      expect(await failure(() => socketPath(directory, interfaceName))).toEqual({
        message: expect.stringMatching(
          /^Cannot use data directory ".*: the socket path in it has \d+ bytes, expected at most 107$/,
        ),
        exit,
        hint: "Choose a data directory with a shorter path",
      });
    }
  });
});

describe("readRegularFile()", () => {
  test("reads text, mode and time, and closes the file to others when asked", async () => {
    await withDirectory(async (directory) => {
      const path = join(directory, "f");
      await writeFile(path, "text", { mode: 0o644 });
      await chmod(path, 0o644);
      await utimes(path, 1000, 2000);
      const open = await readRegularFile(path, { maxBytes: 4 });
      expect({ ...open, stamp: "" }).toEqual({
        text: "text",
        mode: 0o644,
        closed: false,
        modifiedAt: new Date(2_000_000),
        stamp: "",
      });
      expect((await readRegularFile(path, { maxBytes: 4, closeToOthers: true }))?.closed).toBe(true);
      expect(octal((await lstat(path)).mode)).toBe("600");
    });
  });

  test("finds nothing where nothing is", async () => {
    await withDirectory(async (directory) => {
      expect(await readRegularFile(join(directory, "f"), { maxBytes: 4 })).toBeUndefined();
    });
  });

  test.each([
    {
      name: "a directory",
      make: (path: string) => mkdir(path),
      found: "it is a directory, expected a regular file",
    },
    {
      name: "a named pipe, without waiting for a writer",
      make: makeFifo,
      found: "it is a named pipe, expected a regular file",
    },
    {
      name: "a link to nowhere",
      make: (path: string) => symlink("nowhere", path),
      found: "it is a symbolic link to nowhere, expected a regular file",
    },
    {
      name: "a device",
      make: (path: string) => symlink("/dev/zero", path),
      found: "it is a device, expected a regular file",
    },
    {
      name: "a file that is too long",
      make: (path: string) => writeFile(path, "12345"),
      found: "it has 5 bytes, expected at most 4",
    },
  ])("refuses $name", async ({ make, found }) => {
    await withDirectory(async (directory) => {
      await make(join(directory, "f"));
      expect((await failure(() => readRegularFile(join(directory, "f"), { maxBytes: 4 }))).message).toBe(
        found,
      );
    });
  });
});

const pieces = (...texts: readonly string[]): readonly Uint8Array[] => texts.map((text) => Buffer.from(text));

/** Whether it had to be written. */
async function isWritten(file: KeptFile, content: Content): Promise<boolean> {
  return (await file.write(content)).isNew;
}

describe("KeptFile", () => {
  const outside: readonly { name: string; change: (path: string) => Promise<unknown>; written: boolean }[] = [
    { name: "does not write the same text again", change: async () => {}, written: false },
    { name: "writes it again when the file was removed", change: (path) => rm(path), written: true },
    {
      name: "writes it again when the file was edited",
      change: (path) => writeFile(path, "edit"),
      written: true,
    },
    {
      name: "writes it again when the file was opened to others",
      change: (path) => chmod(path, 0o644),
      written: true,
    },
    {
      name: "writes it again when the file was replaced",
      change: (path) => rm(path).then(() => writeFile(path, "text")),
      written: true,
    },
  ];
  test.each(outside)("$name", async ({ change, written }) => {
    await withDirectory(async (directory) => {
      const file = new KeptFile(join(directory, "f"));
      expect(await isWritten(file, "text")).toBe(true);
      await change(file.path);
      expect(await isWritten(file, "text")).toBe(written);
      expect(await listing(directory)).toEqual(["f 600 text"]);
    });
  });

  const [one, two] = [pieces("a", "bc", "d"), pieces("x")];
  test.each([
    { name: "the same arrays", first: one, second: [...one], written: false, text: "abcd" },
    {
      name: "other arrays of the same bytes",
      first: one,
      second: pieces("ab", "c", "d"),
      written: false,
      text: "abcd",
    },
    { name: "a text of the same bytes", first: one, second: "abcd", written: false, text: "abcd" },
    { name: "the text that the pieces make", first: "abcd", second: one, written: false, text: "abcd" },
    {
      name: "another array in the middle",
      first: one,
      second: [...one.slice(0, 1), ...two, ...one.slice(2)],
      written: true,
      text: "axd",
    },
    { name: "one array more at the end", first: one, second: [...one, ...two], written: true, text: "abcdx" },
    {
      name: "one array twice",
      first: [...two, ...one],
      second: [...two, ...two, ...one],
      written: true,
      text: "xxabcd",
    },
    { name: "none any more", first: one, second: [], written: true, text: "" },
    {
      name: "more than one call takes",
      first: one,
      second: Array.from({ length: 3_000 }, () => two).flat(),
      written: true,
      text: "x".repeat(3_000),
    },
  ])("told $name, it writes only what differs", async ({ first, second, written, text }) => {
    await withDirectory(async (directory) => {
      const file = new KeptFile(join(directory, "f"));
      expect(await isWritten(file, first)).toBe(true);
      expect(await isWritten(file, second)).toBe(written);
      expect(await isWritten(file, second)).toBe(false);
      expect(await listing(directory)).toEqual([`f 600 ${text}`]);
    });
  });

  test("takes what it read for written", async () => {
    await withDirectory(async (directory) => {
      const path = join(directory, "f");
      await writeFile(path, "text", { mode: 0o644 });
      const file = new KeptFile(path);
      expect((await file.read(100))?.text).toBe("text");
      expect([await isWritten(file, "text"), await isWritten(file, "other")]).toEqual([false, true]);
      expect(await listing(directory)).toEqual(["f 600 other"]);
    });
  });

  test("tries again after a failed write", async () => {
    await withDirectory(async (directory) => {
      const file = new KeptFile(join(directory, "d", "f"));
      await failure(() => file.write("text"));
      await mkdir(join(directory, "d"));
      expect(await isWritten(file, "text")).toBe(true);
    });
  });
});

describe("bindPrivateSocket()", () => {
  test("gives the socket mode 0600 under any umask, takes the place of a dead one, and puts the umask back", async () => {
    await withDirectory(async (directory) => {
      const path = join(directory, "s");
      await Bun.spawn([
        process.execPath,
        "-e",
        `Bun.listen({unix:${JSON.stringify(path)},socket:{data(){}}});process.kill(process.pid,"SIGKILL")`,
      ]).exited;
      expect((await lstat(path)).isSocket()).toBe(true);
      await withMask(0o022, async () => {
        const listener = bindPrivateSocket(path, () => Bun.listen({ unix: path, socket: { data() {} } }));
        try {
          expect([octal((await lstat(path)).mode), octal(process.umask())]).toEqual(["600", "22"]);
        } finally {
          listener.stop(true);
        }
      });
    });
  });

  test("leaves anything but a socket alone", async () => {
    await withDirectory(async (directory) => {
      const path = join(directory, "s");
      await writeFile(path, "mine");
      const { message } = await failure(() => bindPrivateSocket(path, () => undefined));
      expect(message).toBe(
        `Cannot listen on socket "${path}": it is a regular file, expected nothing or a socket`,
      );
      expect(await readFile(path, "utf8")).toBe("mine");
    });
  });
});

test("syncDirectoryNow() takes a directory that its file system cannot flush, and nothing else", async () => {
  await withDirectory(async (directory) => {
    const file = join(directory, "f");
    await writeFile(file, "");
    syncDirectoryNow(directory);
    const descriptor = openSync("/proc", "r");
    expect(() => fsyncSync(descriptor)).toThrow(/^EINVAL/);
    closeSync(descriptor);
    syncDirectoryNow("/proc");
    expect(() => syncDirectoryNow(file)).toThrow(/^ENOTDIR/);
  });
});
