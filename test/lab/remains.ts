/**
 * Finds and ends what belongs to a lab, by a mark that no process in it can shed.
 *
 * Every machine of a lab is a mount namespace with a tmpfs whose source is named after the lab and its
 * owner (`clusternet-lab-PID-STARTTIME-RANDOM`), so /proc/PID/mountinfo tells for any process, also for a
 * wireguard-go that outlived its agent, whose it is. Nothing else is ever ended. All of it is
 * synchronous: it must also run while the owner is exiting.
 */
import { readdirSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** How long the kernel may take to bury the processes that were ended. */
const burialLimitMs = 5_000;

const markPattern = /clusternet-lab-(\d+)-(\d+)-[0-9a-f]{8}/;

/** A mark for a new lab of this process; also the beginning of the names of its temporary directories. */
export function newMark(): string {
  return `clusternet-lab-${process.pid}-${startTime(process.pid)}-${crypto.randomUUID().slice(0, 8)}`;
}

/** Ends every process of the lab with this mark and removes its temporary directories. */
export function removeLab(mark: string): void {
  endProcesses((found) => found === mark);
  removeDirectories((found) => found === mark);
}

/** The same for labs whose owner is no longer there. */
export function removeOrphanedLabs(): void {
  endProcesses(isOrphaned);
  removeDirectories(isOrphaned);
}

/** Processes that run in the lab with this mark. */
export function processesOf(mark: string): number[] {
  return marked((found) => found === mark);
}

function isOrphaned(mark: string): boolean {
  const [, pid, started] = markPattern.exec(mark) ?? [];
  return startTime(Number(pid)) !== started;
}

/** Clock ticks since boot at which a process was started: with the PID an identity that is never used again. */
function startTime(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19];
  } catch {
    // No such process (any more).
    return undefined;
  }
}

function endProcesses(isWanted: (mark: string) => boolean): void {
  const deadline = performance.now() + burialLimitMs;
  // Again until none is left: a process may have started another between the look and its end.
  for (let pids = marked(isWanted); pids.length > 0; pids = marked(isWanted)) {
    if (performance.now() > deadline) throw new Error(`Cannot end processes ${pids.join(", ")} of a lab`);
    for (const pid of pids) {
      try {
        process.kill(pid, "SIGKILL");
      } catch {
        // Ended by itself since the look.
      }
    }
    Bun.sleepSync(2);
  }
}

function marked(isWanted: (mark: string) => boolean): number[] {
  const ownNetwork = networkOf("self");
  const found: { pid: number; network: string | undefined; mark: string | undefined }[] = [];
  for (const entry of readdirSync("/proc")) {
    if (!/^\d+$/.test(entry)) continue;
    const network = networkOf(entry);
    // Everything in a lab has a network namespace of the lab's own, never the one of its owner.
    if (network === undefined || network === ownNetwork) continue;
    found.push({ pid: Number(entry), network, mark: markOf(entry) });
  }
  const wanted = found.filter(({ mark }) => mark !== undefined && isWanted(mark));
  const networks = new Set(wanted.map(({ network }) => network));
  // By network too: a process in a chroot of its own does not see the mount that carries the mark.
  return found.filter(({ network }) => networks.has(network)).map(({ pid }) => pid);
}

function networkOf(pid: string): string | undefined {
  try {
    return readlinkSync(`/proc/${pid}/ns/net`);
  } catch {
    // Ended since the look, or a zombie.
    return undefined;
  }
}

function markOf(pid: string): string | undefined {
  try {
    return markPattern.exec(readFileSync(`/proc/${pid}/mountinfo`, "utf8"))?.[0];
  } catch {
    return undefined;
  }
}

function removeDirectories(isWanted: (mark: string) => boolean): void {
  for (const name of readdirSync(tmpdir())) {
    const mark = markPattern.exec(name)?.[0];
    if (mark !== undefined && name.startsWith(mark) && isWanted(mark)) {
      rmSync(join(tmpdir(), name), { recursive: true, force: true });
    }
  }
}
