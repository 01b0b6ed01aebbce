/**
 * The files that `wg` reads, looked at before it does: it clears the key of an interface when its file has none, and
 * takes whatever mesh it is given. So they hold what is to be applied, or an error says what they hold instead.
 */
import type { Step, WantedHost } from "../core/host-plan.ts";
import { quotePath } from "../core/problem.ts";
import { ClusternetError } from "../errors.ts";
import { stampAt, type FileStamp } from "./files.ts";
import { readKeyFile } from "./key-file.ts";
import { MeshFile } from "./mesh-file.ts";

export interface WgFiles {
  /** File of the private key, as `wg set … private-key` reads it. */
  readonly keyFile: string;
  /** File of the whole mesh, as `wg syncconf` reads it. */
  readonly configFile: string;
}

/** Throws ClusternetError when `wg` would read something else than what is wanted. `written`: what was just written need not be read again. */
export async function checkWgFiles(
  { keyFile, configFile }: WgFiles,
  step: Step,
  wanted: WantedHost,
  written: FileStamp | undefined,
): Promise<void> {
  if (step.kind === "set-device" && step.key) await checkKeyFile(keyFile, wanted);
  if (step.kind === "sync-conf" && (written === undefined || written !== (await stampAt(configFile)))) {
    await checkMeshFile(configFile, wanted);
  }
}

async function checkKeyFile(path: string, { publicKey }: WantedHost): Promise<void> {
  const found = await readKeyFile(path);
  if (found === undefined) throw cannotUse(path, "there is no such file");
  if (found.key.publicKey !== publicKey) throw cannotUse(path, "its private key is not the one of this node");
}

async function checkMeshFile(path: string, { publicKey, peers, listenPort }: WantedHost): Promise<void> {
  const found = await new MeshFile(path).read(publicKey, { closeToOthers: false });
  if (found.kind === "unusable") {
    throw new ClusternetError(found.problems.map(({ message }) => message).join("; "));
  }
  if (found.kind === "none" || found.nodes.length !== peers.length || found.listenPort !== listenPort) {
    throw cannotUse(path, "it holds another mesh than the one to apply");
  }
}

function cannotUse(path: string, why: string): ClusternetError {
  return new ClusternetError(`Cannot use ${quotePath(path)}: ${why}`);
}
