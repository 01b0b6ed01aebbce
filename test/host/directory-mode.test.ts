/** Which directories are reported as open to others, on real ones. */
import { describe, expect, test } from "bun:test";
import { chmod, chown, lchown, mkdir, rm, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { openDirectoryProblems } from "../../src/host/directory-mode.ts";
import { withDirectory } from "./temporary.ts";

const directoryModule = join(import.meta.dir, "../../src/host/directory-mode.ts");

describe("openDirectoryProblems()", () => {
  test.each<{
    name: string;
    above?: number;
    own?: number;
    owner?: number;
    want: (above: string, own: string) => readonly string[];
  }>([
    { name: "nothing of directories that their owner alone may write", own: 0o755, want: () => [] },
    {
      name: "one that everybody may write",
      own: 0o777,
      want: (_above, own) => [
        `Directory "${own}" has mode 0777: others can put another key, mesh or credentials in the place of this node's (to close it: chmod go-w ${own})`,
      ],
    },
    {
      name: "one that a group may write, and one above it",
      own: 0o770,
      above: 0o775,
      want: (above, own) => [
        expect.stringContaining(`"${own}" has mode 0770`),
        expect.stringContaining(`"${above}" has mode 0775`),
      ],
    },
    {
      name: "nothing of a sticky one above it, in which others cannot rename",
      above: 0o1777,
      want: () => [],
    },
    {
      name: "a sticky one when it is its own: others can make what is not there yet",
      own: 0o1777,
      want: (_above, own) => [expect.stringContaining(`"${own}" has mode 1777`)],
    },
    {
      name: "one of another user",
      owner: 1234,
      want: (_above, own) => [
        expect.stringMatching(new RegExp(`"${own}" belongs to user 1234: .*chown root ${own}\\)$`)),
      ],
    },
    {
      name: "one of the user nobody, who is a user like any other",
      owner: 65_534,
      want: (_above, own) => [expect.stringContaining(`"${own}" belongs to user 65534`)],
    },
  ])("says $name", async ({ above: aboveMode = 0o700, own: ownMode = 0o700, owner, want }) => {
    await withDirectory(async (directory) => {
      const above = join(directory, "above");
      const own = join(above, "own");
      await mkdir(own, { recursive: true });
      await chmod(above, aboveMode);
      await chmod(own, ownMode);
      if (owner !== undefined) await chown(own, owner, owner);
      // Whichever way it is named; and what two have above them is said once.
      await symlink(own, join(directory, "link"));
      const problems = await openDirectoryProblems([own, join(directory, "link"), join(directory, "none")]);
      expect(problems.map(({ message }) => message)).toEqual([...want(above, own)]);
      expect(problems.every(({ kind }) => kind === "directory-mode")).toBe(true);
    });
  });

  test("says nothing of a directory whose owner has no number in this user namespace", async () => {
    await withDirectory(async (directory) => {
      const own = join(directory, "own");
      await mkdir(own);
      await chown(own, 1234, 1234);
      const code = `
        import { openDirectoryProblems } from ${JSON.stringify(directoryModule)};
        console.log(JSON.stringify(await openDirectoryProblems([${JSON.stringify(own)}])));`;
      await chmod(directory, 0o755);
      const child = Bun.spawn(["unshare", "--map-root-user", process.execPath, "-e", code], {
        stdout: "pipe",
        stderr: "inherit",
      });
      expect((await child.stdout.text()).trim()).toBe("[]");
    });
  });

  test.each<{ name: string; make: (directory: string) => Promise<void>; want: readonly string[] }>([
    { name: "nothing of a link in a closed directory", make: async () => {}, want: [] },
    {
      name: "a directory in which a link on the way to the data directory stands",
      make: (directory) => chmod(join(directory, "first"), 0o777),
      want: ['Directory "DIR/first" has mode 0777'],
    },
    {
      name: "a directory in which a link stands that another link leads to",
      make: (directory) => chmod(join(directory, "second"), 0o777),
      want: ['Directory "DIR/second" has mode 0777'],
    },
    {
      name: "the directory of a link's target",
      make: (directory) => chmod(join(directory, "third"), 0o777),
      want: ['Directory "DIR/third" has mode 0777'],
    },
    {
      name: "nothing of a sticky directory in which a link of ours stands",
      make: (directory) => chmod(join(directory, "first"), 0o1777),
      want: [],
    },
    {
      name: "a link of another user",
      make: (directory) => lchown(join(directory, "first/link"), 1234, 1234),
      want: ['Symbolic link "DIR/first/link" belongs to user 1234'],
    },
    {
      name: "the directory of a file that stands elsewhere",
      make: (directory) => chmod(join(directory, "files"), 0o777),
      want: ['Directory "DIR/files" has mode 0777'],
    },
    {
      name: "a sticky directory of a file: others can make what is not there yet",
      make: (directory) => chmod(join(directory, "files"), 0o1777),
      want: ['Directory "DIR/files" has mode 1777'],
    },
    {
      name: "the directory of a file to which a link leads",
      make: (directory) => chmod(join(directory, "target"), 0o777),
      want: ['Directory "DIR/target" has mode 0777'],
    },
    {
      name: "nothing when links lead in a circle",
      make: async (directory) => {
        await rm(join(directory, "second/link"));
        await symlink("../first/link", join(directory, "second/link"));
      },
      want: [],
    },
  ])("says $name", async ({ make, want }) => {
    await withDirectory(async (directory) => {
      for (const name of ["first", "second", "third/own", "files", "target"]) {
        await mkdir(join(directory, name), { recursive: true, mode: 0o755 });
      }
      await symlink(join(directory, "second/link"), join(directory, "first/link"));
      await symlink("../third", join(directory, "second/link"));
      await writeFile(join(directory, "target/cert.pem"), "");
      await symlink("../target/cert.pem", join(directory, "files/cert.pem"));
      await make(directory);
      const files = ["files/cert.pem", "files/none.pem"].map((name) => join(directory, name));
      const problems = await openDirectoryProblems([join(directory, "first/link/own")], files);
      expect(
        problems.map(({ message }) => message.split(": others can")[0]?.replace(directory, "DIR")),
      ).toEqual([...want]);
    });
  });
});
