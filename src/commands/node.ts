/**
 * `clusternet node list`, `node remove ID` and `node allow ID`: speak with the Curator that runs on this machine,
 * through the Unix socket in its data directory. Without a running Curator they end with 69.
 */
import { quote } from "../core/problem.ts";
import { changeMembership, readNodes, type ListedNode } from "../curator-server/admin.ts";
import { exitStatus, SettingsError, type ExitStatus } from "../errors.ts";
import { nodeCommandOf } from "../node-command.ts";
import { ago, alignColumns, renderList } from "../table.ts";

/** Options of every `clusternet node` command, parsed. */
export interface NodeCommandOptions {
  /** The Curator's data directory; default as for `clusternet curator`. */
  readonly dataDir: string;
}

export interface NodeListOptions extends NodeCommandOptions {
  /** One JSON array instead of a table. */
  readonly json: boolean;
}

/** What a command gets from `main` besides its options. */
export interface NodeCommandContext {
  /** Writes text on standard output as it is. */
  readonly stdout: (text: string) => void;
}

/** Prints every member, and who is none any more or not yet again. Throws ClusternetError, exit 69 when no Curator runs. */
export async function nodeList(
  { dataDir, json }: NodeListOptions,
  { stdout }: NodeCommandContext,
): Promise<ExitStatus> {
  const nodes = await readNodes(dataDir);
  stdout(json ? `${JSON.stringify(nodes, undefined, 2)}\n` : renderNodeTable(nodes, new Date()));
  return exitStatus.ok;
}

/** Takes a node out: it is told NOT_FOUND from then on. Throws as `nodeList`, exit 78 for a node that is not there. */
export async function nodeRemove(
  { dataDir }: NodeCommandOptions,
  id: string,
  { stdout }: NodeCommandContext,
): Promise<ExitStatus> {
  const outcome = await changeMembership(dataDir, { change: "remove", id });
  switch (outcome) {
    case "done":
      stdout(`Removed node ${quote(id)}; let it in again with: ${nodeCommandOf(dataDir)("allow", id)}\n`);
      return exitStatus.ok;
    case "was-so":
      stdout(`Node ${quote(id)} was removed already\n`);
      return exitStatus.ok;
    case "unknown-node":
      throw unknownNode("remove", id, dataDir);
  }
}

/** Lets a removed node in again. Throws as `nodeRemove`. */
export async function nodeAllow(
  { dataDir }: NodeCommandOptions,
  id: string,
  { stdout }: NodeCommandContext,
): Promise<ExitStatus> {
  const outcome = await changeMembership(dataDir, { change: "allow", id });
  switch (outcome) {
    case "done":
      stdout(`Allowed node ${quote(id)}: it is a member again once it reports its status\n`);
      return exitStatus.ok;
    case "was-so":
      stdout(`Node ${quote(id)} was allowed already\n`);
      return exitStatus.ok;
    case "unknown-node":
      throw unknownNode("allow", id, dataDir);
  }
}

function unknownNode(verb: "remove" | "allow", id: string, dataDir: string): SettingsError {
  return new SettingsError(`Cannot ${verb} node ${quote(id)}: there is none of this ID`, {
    hint: `All of them: ${nodeCommandOf(dataDir)("list")}`,
  });
}

/** As many prefixes of a node as the table shows; one node with a thousand would pad the line of every other. */
const shownPrefixes = 3;

/** The table of `node list`: a line a node, of many prefixes the first and a count. */
export function renderNodeTable(nodes: readonly ListedNode[], now: Date): string {
  if (nodes.length === 0) return "No nodes: none has reported its status to this Curator yet\n";
  const rows = [
    ["NODE", "STATE", "LAST REPORT", "ADDRESS", "PUBLIC KEY", "PREFIXES"],
    ...nodes.map((node) => [
      node.id,
      node.state,
      node.lastReportAt === null ? "-" : ago(node.lastReportAt, now),
      node.externalAddress ?? "-",
      node.publicKey ?? "-",
      renderList(node.prefixes, shownPrefixes),
    ]),
  ];
  return `${alignColumns(rows).join("\n")}\n`;
}
