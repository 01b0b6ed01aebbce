/**
 * Whether others can put files of theirs in the place of ours: `directory-mode`, as long as it lasts (C8).
 *
 * A file is as safe as the directories that lead to it: whoever may write one of them can rename what is in it and put
 * something else there, whatever the mode of the file. So all of them are looked at, up to the root, as OpenSSH does
 * before it believes a key file; where a symbolic link is on the way, those that lead to the link and those that lead to
 * its target. Reported and nothing more: a directory that somebody else made is his to close.
 */
import { lstat, readFile, readlink, stat } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { shellCommand } from "../core/printable.ts";
import { quotePath, type Problem } from "../core/problem.ts";

const writableByOthers = 0o022;
const sticky = 0o1000;
/** In a user namespace this stands for whoever has no number there; nothing is known of him. Elsewhere it is `nobody`. */
const overflowUser = 65_534;
/** As many as Linux follows. */
const maxLinks = 40;

/**
 * Of these directories, those of these files, and all that lead to them; one that is not there, or may not be looked at,
 * has none.
 */
export async function openDirectoryProblems(
  directories: readonly string[],
  files: readonly string[] = [],
): Promise<readonly Problem[]> {
  const isNamespaced = await isInUserNamespace();
  const found = new Map<string, Problem>();
  const look = async ({ own, above, links }: Way): Promise<void> => {
    for (const path of [own, ...above]) {
      const problem = await problemOf(path, { isOwn: path === own, isNamespaced });
      if (problem !== undefined) found.set(path, problem);
    }
    for (const path of links) {
      const problem = await linkProblemOf(path, { isNamespaced });
      if (problem !== undefined) found.set(path, problem);
    }
  };
  for (const directory of new Set([...directories, ...files.map((file) => dirname(resolve(file)))])) {
    const way = await findWay(directory);
    if (way !== undefined) await look(way);
  }
  for (const file of files) {
    const way = await findWay(file);
    const [own, ...above] = way?.above ?? [];
    if (way !== undefined && own !== undefined) await look({ ...way, own, above });
  }
  return [...found.values()];
}

/** What leads to a file or directory. */
interface Way {
  /** The thing itself, by a path without links. */
  readonly own: string;
  /** Directories that were gone through, by paths without links, the nearest first. */
  readonly above: readonly string[];
  /** Symbolic links that were followed. */
  readonly links: readonly string[];
}

/** Goes the way that the kernel goes; undefined when nothing is at its end. */
async function findWay(path: string): Promise<Way | undefined> {
  const links: string[] = [];
  const passed: string[] = [];
  let rest = resolve(path).split("/");
  let at = "/";
  for (let name = rest.shift(); name !== undefined; name = rest.shift()) {
    if (name === "" || name === ".") continue;
    passed.push(at);
    const next = name === ".." ? dirname(at) : join(at, name);
    // What is no link has no target.
    const target = await readlink(next).catch(() => undefined);
    if (target === undefined) {
      at = next;
      continue;
    }
    links.push(next);
    if (links.length > maxLinks) return undefined;
    rest = [...target.split("/"), ...rest];
    if (target.startsWith("/")) at = "/";
  }
  const isThere = await stat(at).catch(() => undefined);
  return isThere === undefined ? undefined : { own: at, above: [...new Set(passed.toReversed())], links };
}

async function isInUserNamespace(): Promise<boolean> {
  const map = await readFile("/proc/self/uid_map", "utf8").catch(() => "");
  return map !== "" && !/^\s*0\s+0\s+4294967295\s*$/.test(map);
}

interface View {
  readonly isNamespaced: boolean;
}

function isAnothers(uid: number, { isNamespaced }: View): boolean {
  return uid !== 0 && uid !== process.geteuid?.() && !(isNamespaced && uid === overflowUser);
}

async function problemOf(
  path: string,
  view: View & { readonly isOwn: boolean },
): Promise<Problem | undefined> {
  const stats = await stat(path).catch(() => undefined);
  if (stats === undefined) return undefined;
  const { mode, uid } = stats;
  if (isAnothers(uid, view)) {
    return open(`Directory ${quotePath(path)} belongs to user ${uid}`, ["chown", "root", path]);
  }
  // In a sticky directory, like /tmp, others can make files, but not take ours away; that is enough above our own.
  if ((mode & writableByOthers) === 0 || (!view.isOwn && (mode & sticky) !== 0)) return undefined;
  const shown = (mode & 0o7777).toString(8).padStart(4, "0");
  return open(`Directory ${quotePath(path)} has mode ${shown}`, ["chmod", "go-w", path]);
}

/** Its owner may put another in its place, also in a sticky directory. */
async function linkProblemOf(path: string, view: View): Promise<Problem | undefined> {
  const uid = (await lstat(path).catch(() => undefined))?.uid;
  if (uid === undefined || !isAnothers(uid, view)) return undefined;
  return open(`Symbolic link ${quotePath(path)} belongs to user ${uid}`, ["chown", "-h", "root", path]);
}

function open(found: string, remedy: readonly string[]): Problem {
  return {
    kind: "directory-mode",
    message:
      `${found}: others can put another key, mesh or credentials in the place of this ` +
      `node's (to close it: ${shellCommand(remedy)})`,
  };
}
