/**
 * Whether others can put files of theirs in the place of ours: `directory-mode`, as long as it lasts (C8).
 *
 * A file is as safe as the directories above it: whoever may write one of them can rename what is in it and put
 * something else there, whatever the mode of the file. So all of them are looked at, up to the root, as OpenSSH does
 * before it believes a key file. Reported and nothing more: a directory that somebody else made is his to close.
 */
import { realpath, stat } from "node:fs/promises";
import { dirname } from "node:path";
import { shellCommand } from "../core/printable.ts";
import { quotePath, type Problem } from "../core/problem.ts";

const writableByOthers = 0o022;
const sticky = 0o1000;
/** In a user namespace this stands for whoever has no number there; nothing is known of him. */
const overflowUser = 65_534;

/** Of these directories and of all above them; one that is not there, or may not be looked at, has none. */
export async function openDirectoryProblems(directories: readonly string[]): Promise<readonly Problem[]> {
  const found = new Map<string, Problem>();
  for (const directory of directories) {
    const own = await realpath(directory).catch(() => undefined);
    if (own === undefined) continue;
    for (const path of upToRoot(own)) {
      const problem = await problemOf(path, path === own);
      if (problem !== undefined) found.set(path, problem);
    }
  }
  return [...found.values()];
}

function upToRoot(path: string): readonly string[] {
  const above = dirname(path);
  return above === path ? [path] : [path, ...upToRoot(above)];
}

async function problemOf(path: string, isOwn: boolean): Promise<Problem | undefined> {
  const stats = await stat(path).catch(() => undefined);
  if (stats === undefined) return undefined;
  const { mode, uid } = stats;
  if (uid !== 0 && uid !== process.geteuid?.() && uid !== overflowUser) {
    return openDirectory(path, `belongs to user ${uid}`, ["chown", "root", path]);
  }
  // In a sticky directory, like /tmp, others can make files, but not take ours away; that is enough above our own.
  if ((mode & writableByOthers) === 0 || (!isOwn && (mode & sticky) !== 0)) return undefined;
  const shown = (mode & 0o7777).toString(8).padStart(4, "0");
  return openDirectory(path, `has mode ${shown}`, ["chmod", "go-w", path]);
}

function openDirectory(path: string, found: string, remedy: readonly string[]): Problem {
  return {
    kind: "directory-mode",
    message:
      `Directory ${quotePath(path)} ${found}: others can put another key, mesh or credentials in the place of this ` +
      `node's (to close it: ${shellCommand(remedy)})`,
  };
}
