/** The key file: made once, never overwritten, never shown (CASES 29: every broken key file ends in 78 and stays). */
import { describe, expect, test } from "bun:test";
import { chmod, lstat, mkdir, readFile, readdir, readlink, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { parsePrivateKey } from "../../src/core/key.ts";
import { describeError } from "../../src/errors.ts";
import { ensureKeyFile, readKeyFile, rewriteKeyFile } from "../../src/host/key-file.ts";
import { failure, octal, onDisk, withDirectory } from "./temporary.ts";

const keyText = "4LOVwL9lT5mEHRmGkMdXHJg0tVFTZ7m7gvmpxmSzN1U=";
const hint =
  "Put the right key back, or remove the file to get a new key: other nodes will see this node's public key change";

async function withKeyFile(use: (path: string) => Promise<void>): Promise<void> {
  await withDirectory((directory) => use(join(directory, "private.key")));
}

describe("ensureKeyFile()", () => {
  test("makes a key where there is none, mode 0600, and gives the same one from then on", async () => {
    await withKeyFile(async (path) => {
      const first = await ensureKeyFile(path);
      const text = await readFile(path, "utf8");
      const second = await ensureKeyFile(path);
      expect(text).toMatch(/^[A-Za-z0-9+/]{43}=\n$/);
      expect([first.key.reveal(), second.key.reveal()]).toEqual([text.trim(), text.trim()]);
      expect([first.made, second.made]).toEqual([true, false]);
      expect([first.problems, second.problems]).toEqual([[], []]);
      expect(octal((await lstat(path)).mode)).toBe("600");
      expect(await readdir(join(path, ".."))).toEqual(["private.key"]);
    });
  });

  test("makes another key each time", async () => {
    const keys = new Set<string>();
    for (let turn = 0; turn < 5; turn++) {
      await withKeyFile(async (path) => {
        keys.add((await ensureKeyFile(path)).key.reveal());
      });
    }
    expect(keys.size).toBe(5);
  });

  test("agrees with `wg pubkey` on the public key", async () => {
    await withKeyFile(async (path) => {
      const { key } = await ensureKeyFile(path);
      const wg = Bun.spawn(["wg", "pubkey"], { stdin: Bun.file(path), stdout: "pipe" });
      expect((await new Response(wg.stdout).text()).trim()).toBe(key.publicKey);
    });
  });

  test("gives all of many processes' calls that start at once one key", async () => {
    await withKeyFile(async (path) => {
      const found = await Promise.all(Array.from({ length: 20 }, () => ensureKeyFile(path)));
      expect(new Set(found.map(({ key }) => key.reveal())).size).toBe(1);
      expect(found.filter(({ made }) => made).length).toBe(1);
    });
  });

  test.each([
    { name: "no white space", content: keyText },
    { name: "a new line", content: `${keyText}\n` },
    { name: "spaces, tabs and new lines", content: `${keyText} \t\r\n\n` },
  ])("accepts $name at the end and leaves the file as it is", async ({ content }) => {
    await withKeyFile(async (path) => {
      await writeFile(path, content, { mode: 0o600 });
      const { key, made, problems } = await ensureKeyFile(path);
      expect([key.reveal(), made, problems]).toEqual([keyText, false, []]);
      expect(await readFile(path, "utf8")).toBe(content);
    });
  });

  const broken = [
    { name: "empty", content: "", found: "it is empty, expected 44 characters of base64" },
    { name: "only a new line", content: "\n", found: "it is empty, expected 44 characters of base64" },
    {
      name: "cut to 20 characters",
      content: keyText.slice(0, 20),
      found: "it has 20 characters, expected 44 characters of base64",
    },
    {
      name: "of 45 characters",
      content: `${keyText.slice(0, 43)}A=`,
      found: "it has 45 characters, expected 44 characters of base64",
    },
    {
      name: "of two keys",
      content: `${keyText}\n${keyText}\n`,
      found: "it has 89 characters, expected 44 characters of base64",
    },
    { name: "very long", content: keyText.repeat(100), found: "it has 4400 bytes, expected at most 4096" },
  ];
  test.each(broken)("refuses a file that is $name with 78 and leaves it", async ({ content, found }) => {
    await withKeyFile(async (path) => {
      await writeFile(path, content, { mode: 0o600 });
      expect(await failure(() => ensureKeyFile(path))).toEqual({
        message: `Cannot use private key "${path}": ${found}`,
        exit: 78,
        hint,
      });
      expect(await readFile(path, "utf8")).toBe(content);
    });
  });

  test.each([
    { name: "with a typo", content: `${keyText.slice(0, 10)}!${keyText.slice(11)}` },
    { name: "with white space before", content: ` ${keyText.slice(0, 43)}` },
    { name: "with bits that are no part of the key", content: `${keyText.slice(0, 42)}V=` },
    { name: "of zeros", content: `${"A".repeat(43)}=` },
    { name: "in url base64", content: keyText.replace("L", "_") },
  ])("refuses a key $name with 78, shows nothing of it and leaves it", async ({ content }) => {
    await withKeyFile(async (path) => {
      await writeFile(path, content, { mode: 0o600 });
      let shown = "";
      await ensureKeyFile(path).catch(
        (error: unknown) => (shown = `${describeError(error)} ${Bun.inspect(error)}`),
      );
      expect(shown).toContain(`Cannot use private key "${path}": `);
      for (let at = 0; at + 8 <= keyText.length; at++) expect(shown).not.toContain(keyText.slice(at, at + 8));
      expect((await failure(() => ensureKeyFile(path))).exit).toBe(78);
      expect(await readFile(path, "utf8")).toBe(content);
    });
  });

  test.each([
    {
      name: "a directory",
      make: (path: string) => mkdir(path),
      found: "it is a directory, expected a regular file",
    },
    {
      name: "a symbolic link to nowhere",
      make: (path: string) => symlink("nowhere", path),
      found: "it is a symbolic link to nowhere, expected a regular file",
    },
    {
      name: "a named pipe",
      make: (path: string) => Bun.spawn(["mkfifo", path]).exited,
      found: "it is a named pipe, expected a regular file",
    },
  ])("refuses $name with 78 and leaves it", async ({ make, found }) => {
    await withKeyFile(async (path) => {
      await make(path);
      const before = (await lstat(path)).ino;
      expect(await failure(() => ensureKeyFile(path))).toEqual({
        message: `Cannot use private key "${path}": ${found}`,
        exit: 78,
        hint,
      });
      expect((await lstat(path)).ino).toBe(before);
    });
  });

  test.each([0o644, 0o640, 0o604, 0o660])("sets mode %o back to 0600 and reports it, once", async (mode) => {
    await withKeyFile(async (path) => {
      await writeFile(path, keyText);
      await chmod(path, mode);
      expect((await ensureKeyFile(path)).problems).toEqual([
        {
          kind: "key-mode",
          message: `Private key "${path}" had mode 0${octal(mode)}, expected 0600: the private key in it may have leaked; others can no longer read it`,
        },
      ]);
      expect(octal((await lstat(path)).mode)).toBe("600");
      expect((await ensureKeyFile(path)).problems).toEqual([]);
    });
  });

  test("does not advise to remove a key that the disk does not give", async () => {
    // A regular file that nobody may read at its beginning, where nothing is mapped.
    const refused = await failure(() => readKeyFile("/proc/self/mem"));
    expect(refused).toEqual({
      message: expect.stringMatching(/^Cannot use private key "\/proc\/self\/mem": .*EIO: i\/o error/),
      exit: 78,
      hint: "Look in the kernel's log (dmesg) for a disk that fails or has become read-only",
    });
  });

  test("is not disturbed by a temporary file that a crash left", async () => {
    await withKeyFile(async (path) => {
      await writeFile(join(path, "../.private.key.0123456789abcdef.clusternet-tmp"), "AAAA");
      await writeFile(path, keyText, { mode: 0o600 });
      expect((await ensureKeyFile(path)).key.reveal()).toBe(keyText);
    });
  });

  test("follows a symbolic link to a key", async () => {
    await withKeyFile(async (path) => {
      await writeFile(join(path, "../elsewhere"), keyText, { mode: 0o600 });
      await symlink("elsewhere", path);
      expect((await ensureKeyFile(path)).key.reveal()).toBe(keyText);
      expect(await readlink(path)).toBe("elsewhere");
    });
  });

  test("leaves no file, not even an empty one, on a full disk, and refuses with 78", async () => {
    const result = await onDisk({
      mount: "size=16k",
      prepare: "head -c 20000 /dev/zero > ballast 2>/dev/null || true",
      code: `
        import { ensureKeyFile } from "SRC/host/key-file.ts";
        import { readdirSync, rmSync } from "node:fs";
        const path = process.cwd() + "/private.key";
        const failed = await ensureKeyFile(path).catch((error) => error);
        const left = readdirSync(".");
        rmSync("ballast");
        const { made } = await ensureKeyFile(path);
        export default [failed.message.replace(process.cwd(), "D"), failed.exit, left, made];`,
    });
    expect(result).toEqual([
      `Cannot make private key "D/private.key": ENOSPC: no space left on device`,
      78,
      ["ballast"],
      true,
    ]);
  });

  test("uses a key on a read-only disk, whatever its mode, and refuses with 78 to make one", async () => {
    const result = await onDisk({
      mount: "size=64k",
      prepare: `printf %s ${keyText} > private.key; chmod 644 private.key; mount -o remount,ro .`,
      code: `
        import { ensureKeyFile } from "SRC/host/key-file.ts";
        const { key, problems } = await ensureKeyFile(process.cwd() + "/private.key");
        const failed = await ensureKeyFile(process.cwd() + "/other.key").catch((error) => error);
        export default [key.reveal(), problems[0].message.replace(process.cwd(), "D"), failed.message.replace(process.cwd(), "D"), failed.exit];`,
    });
    expect(result).toEqual([
      keyText,
      `Private key "D/private.key" had mode 0644, expected 0600: the private key in it may have leaked; it is as it was`,
      `Cannot make private key "D/other.key": EROFS: read-only file system`,
      78,
    ]);
  });

  test("refuses with 78 to make a key in a directory that is not there", async () => {
    await withKeyFile(async (path) => {
      expect((await failure(() => ensureKeyFile(join(path, "../gone/private.key")))).exit).toBe(78);
    });
  });
});

describe("readKeyFile()", () => {
  test("finds nothing where there is no file, and makes none", async () => {
    await withKeyFile(async (path) => {
      expect(await readKeyFile(path)).toBeUndefined();
      expect(await readdir(join(path, ".."))).toEqual([]);
    });
  });

  test("reports a mode that lets others read, and changes nothing", async () => {
    await withKeyFile(async (path) => {
      await writeFile(path, keyText);
      await chmod(path, 0o644);
      const found = await readKeyFile(path);
      expect([found?.key.reveal(), found?.problems.map(({ kind }) => kind)]).toEqual([keyText, ["key-mode"]]);
      expect(octal((await lstat(path)).mode)).toBe("644");
    });
  });
});

describe("rewriteKeyFile()", () => {
  test("writes the same bytes back that were made", async () => {
    await withKeyFile(async (path) => {
      const { key } = await ensureKeyFile(path);
      const again = join(path, "../again");
      expect(await rewriteKeyFile(again, key)).toBe(true);
      expect(await readFile(again, "utf8")).toBe(await readFile(path, "utf8"));
      expect(octal((await lstat(again)).mode)).toBe("600");
    });
  });

  test("leaves a file that is there, whatever its content", async () => {
    await withKeyFile(async (path) => {
      await writeFile(path, "");
      expect(await rewriteKeyFile(path, parsePrivateKey(keyText))).toBe(false);
      expect(await readFile(path, "utf8")).toBe("");
    });
  });
});
