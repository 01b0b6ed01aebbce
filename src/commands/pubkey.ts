/**
 * `clusternet pubkey`: prints this node's public key, making the key when there is none.
 *
 * Works beside a running agent: the key file is made whole or not at all and never overwritten, so whoever comes
 * second takes the key of the first.
 */
import { join } from "node:path";
import { secretForms } from "../core/key.ts";
import { exitStatus, type ExitStatus } from "../errors.ts";
import { openDirectoryProblems } from "../host/directory-mode.ts";
import { ensurePrivateDirectory } from "../host/files.ts";
import { ensureKeyFile, keyFileName } from "../host/key-file.ts";
import type { PlaceSettings } from "../settings.ts";
import type { CommandContext } from "./context.ts";

/** Throws SettingsError when the key cannot be used or its directory cannot be written. */
export async function pubkey(
  { dataDirectory }: PlaceSettings,
  { log, stdout }: Pick<CommandContext, "log" | "stdout">,
): Promise<ExitStatus> {
  await ensurePrivateDirectory(dataDirectory);
  const { key, problems } = await ensureKeyFile(join(dataDirectory, keyFileName));
  for (const form of secretForms(key)) log.redact(form);
  for (const problem of [...problems, ...(await openDirectoryProblems([dataDirectory]))])
    log.warn(problem.message, { problem: problem.kind });
  stdout(`${key.publicKey}\n`);
  return exitStatus.ok;
}
