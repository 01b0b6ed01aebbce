/**
 * Commands of `clusternet node` as a message names them: pasted on the Curator's machine, they do what it says.
 */
import { defaultCuratorDirectory } from "./checks.ts";
import { shellCommand } from "./core/printable.ts";

/** One of them. Of `list` there is no ID. */
export type NodeCommand = (verb: "list" | "remove" | "allow", id?: string) => string;

/** Those for the Curator with this data directory. An ID can hold what a shell, or the command, makes something of. */
export function nodeCommandOf(dataDirectory: string): NodeCommand {
  return (verb, id) =>
    shellCommand([
      "clusternet",
      "node",
      verb,
      ...(dataDirectory === defaultCuratorDirectory ? [] : ["--data-dir", dataDirectory]),
      ...(id?.startsWith("-") === true ? ["--"] : []),
      ...(id === undefined ? [] : [id]),
    ]);
}
