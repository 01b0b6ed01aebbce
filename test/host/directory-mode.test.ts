/** Which directories are reported as open to others, on real ones. */
import { describe, expect, test } from "bun:test";
import { chmod, chown, mkdir, symlink } from "node:fs/promises";
import { join } from "node:path";
import { openDirectoryProblems } from "../../src/host/directory-mode.ts";
import { withDirectory } from "./temporary.ts";

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
});
