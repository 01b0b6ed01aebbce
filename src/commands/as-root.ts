/**
 * Who runs a command, and what it would be as root: for what is told to a user who may not do all of it.
 *
 * Commands are written so that they can be pasted: only flags that are not as by default are in them.
 */
import { shellCommand } from "../core/printable.ts";
import { defaultPlace, type PlaceSettings } from "../settings.ts";

/** Whose rights do not reach everywhere; undefined for root. */
export function ordinaryUser(): number | undefined {
  const user = process.geteuid?.();
  return user === 0 ? undefined : user;
}

/** A command that works on this place. */
export function placeCommand(
  command: "down" | "status",
  { dataDirectory, interfaceName }: PlaceSettings,
): string {
  return shellCommand([
    "clusternet",
    command,
    ...(dataDirectory === defaultPlace.dataDirectory ? [] : ["--data-dir", dataDirectory]),
    ...(interfaceName === defaultPlace.interfaceName ? [] : ["--interface", interfaceName]),
  ]);
}

/** What to do, as a hint says it. */
export function runAsRoot(command: "down" | "status", place: PlaceSettings): string {
  return `run \`sudo ${placeCommand(command, place)}\``;
}
