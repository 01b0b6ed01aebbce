/**
 * The command line: argv and environment become one typed invocation, or one line that says what is wrong.
 *
 * Parsing is pure and loads no command, so usage errors and help come at once. Commander knows the grammar; its
 * messages are put into our words here, and what values may be is decided in src/settings.ts.
 */
import { Command, CommanderError, Help, Option } from "commander";
import { UsageError, exitMeanings, exitStatus, type ExitStatus } from "./errors.ts";
import type { CommandContext } from "./commands/context.ts";
import type { NodeCommandOptions, NodeListOptions } from "./commands/node.ts";
import type { PkiInitOptions, PkiIssueOptions } from "./commands/pki.ts";
import type { NodeId } from "./core/node.ts";
import { quote } from "./core/problem.ts";
import {
  type FlagSpec,
  type Occurrences,
  agentVariables,
  collectFlags,
  curatorFlags,
  curatorVariables,
  nodeFlags,
  nodeListFlags,
  pkiInitFlags,
  pkiIssueFlags,
  placeFlags,
  runFlags,
  runVariables,
  statusFlags,
  variableOf,
} from "./flags.ts";
import { type LogSettings, defaultLogSettings } from "./log.ts";
import {
  type CuratorSettings,
  type GivenFlags,
  type PlaceSettings,
  type RunSettings,
  type StatusSettings,
  parseCuratorSettings,
  parseNodeArgument,
  parseNodeListSettings,
  parseNodeSettings,
  parsePkiArgument,
  parsePkiInitSettings,
  parsePkiIssueSettings,
  parsePlaceSettings,
  parseRunSettings,
  parseStatusSettings,
} from "./settings.ts";
import { commit, version } from "./version.ts";

/** What the command line asks for. */
export type Invocation =
  /** Help or version on stdout, status 0. */
  | { readonly command: "help"; readonly text: string }
  /** No command: the usage on stderr, status 64. */
  | { readonly command: "usage"; readonly text: string }
  | { readonly command: "run"; readonly settings: RunSettings }
  | { readonly command: "down"; readonly settings: PlaceSettings }
  | { readonly command: "status"; readonly settings: StatusSettings }
  | { readonly command: "pubkey"; readonly settings: PlaceSettings }
  | { readonly command: "curator"; readonly settings: CuratorSettings }
  | { readonly command: "node list"; readonly options: NodeListOptions }
  | {
      readonly command: "node remove" | "node allow";
      readonly options: NodeCommandOptions;
      readonly id: NodeId;
    }
  | { readonly command: "pki init"; readonly options: PkiInitOptions }
  | { readonly command: "pki issue"; readonly options: PkiIssueOptions; readonly id: NodeId };

export type Environment = Readonly<Record<string, string | undefined>>;

/** Help is as wide on every terminal, so that what a test or a mail shows is what others see. */
const helpColumns = 100;

const environmentNote =
  "Every flag can also come from the environment: the name in brackets, flags win. " +
  "A repeatable flag is comma-separated there, a switch is 1, 0, true or false, empty is unset.";

/** Parses the arguments after the program's name. Throws UsageError, SettingsError. */
export function parseCommandLine(argv: readonly string[], environment: Environment): Invocation {
  let invocation: Invocation | undefined;
  let shown = "";
  const program = quiet(new Command("clusternet"), (text) => (shown += text))
    .description("WireGuard mesh agent for clusters with a Metropolis-compatible Curator.")
    .usage("<command> [flags]")
    .version(versionLine(), "--version", "print version, commit and platform")
    .enablePositionalOptions()
    .addHelpText("after", notes());

  const addCommand = (parent: Command, spec: CommandSpec): void => {
    const command = parent.command(spec.name).description(spec.about);
    quiet(command, (text) => (shown += text));
    const variables = spec.variables ?? agentVariables;
    const occurrences = addFlags(command, spec.flags, variables);
    if (spec.argument !== undefined) command.argument("<ID>", spec.argument);
    command.action((...args: readonly unknown[]) => {
      const all = [...spec.flags, ...(spec.hidden ?? [])];
      const given = collectFlags(all, occurrences, environment, variables);
      invocation = spec.parse(given, typeof args[0] === "string" ? args[0] : "");
    });
  };
  for (const spec of commands) addCommand(program, spec);
  const node = quiet(program.command("node"), (text) => (shown += text)).description(
    "the nodes of the Curator on this machine",
  );
  for (const spec of nodeCommands) addCommand(node, spec);
  const pki = quiet(program.command("pki"), (text) => (shown += text)).description(
    "a cluster CA of your own, and the credentials of its nodes",
  );
  for (const spec of pkiCommands) addCommand(pki, spec);

  try {
    program.parse([...argv], { from: "user" });
  } catch (error) {
    if (!(error instanceof CommanderError)) throw error;
    if (error.code === "commander.helpDisplayed" || error.code === "commander.version") {
      return { command: "help", text: shown };
    }
    if (error.code === "commander.help") return { command: "usage", text: shown };
    throw error;
  }
  if (invocation === undefined) throw new Error("a command was parsed and did nothing");
  return invocation;
}

interface CommandSpec {
  readonly name: string;
  readonly about: string;
  readonly flags: readonly FlagSpec[];
  /** What only the environment can say. */
  readonly hidden?: readonly FlagSpec[];
  readonly variables?: string;
  /** What its one argument is. */
  readonly argument?: string;
  readonly parse: (given: GivenFlags, argument: string) => Invocation;
}

const commands: readonly CommandSpec[] = [
  {
    name: "run",
    about: "the agent: keeps this node in the mesh until SIGTERM or SIGINT",
    flags: runFlags,
    hidden: runVariables,
    parse: (given) => ({ command: "run", settings: parseRunSettings(given) }),
  },
  {
    name: "down",
    about: "take interface, routes and loopback addresses of the mesh away; key and file stay",
    flags: placeFlags,
    parse: (given) => ({ command: "down", settings: parsePlaceSettings(given) }),
  },
  {
    name: "status",
    about: "the mesh as this node sees it, and every problem; works without a running agent",
    flags: statusFlags,
    parse: (given) => ({ command: "status", settings: parseStatusSettings(given) }),
  },
  {
    name: "pubkey",
    about: "print this node's public key, making the key when absent",
    flags: placeFlags,
    parse: (given) => ({ command: "pubkey", settings: parsePlaceSettings(given) }),
  },
  {
    name: "curator",
    about: "the small Curator of this project, until SIGTERM or SIGINT",
    flags: curatorFlags,
    variables: curatorVariables,
    parse: (given) => ({ command: "curator", settings: parseCuratorSettings(given) }),
  },
];

const nodeCommands: readonly CommandSpec[] = [
  {
    name: "list",
    about: "print every node",
    flags: nodeListFlags,
    variables: curatorVariables,
    parse: (given) => ({ command: "node list", options: parseNodeListSettings(given) }),
  },
  {
    name: "remove",
    about: "take a node out of the cluster",
    flags: nodeFlags,
    variables: curatorVariables,
    argument: "node ID",
    parse: (given, id) => ({
      command: "node remove",
      options: parseNodeSettings(given),
      id: parseNodeArgument(id),
    }),
  },
  {
    name: "allow",
    about: "let a removed node in again",
    flags: nodeFlags,
    variables: curatorVariables,
    argument: "node ID",
    parse: (given, id) => ({
      command: "node allow",
      options: parseNodeSettings(given),
      id: parseNodeArgument(id),
    }),
  },
];

const pkiCommands: readonly CommandSpec[] = [
  {
    name: "init",
    about: "make a cluster CA; its key stays there",
    flags: pkiInitFlags,
    parse: (given) => ({ command: "pki init", options: parsePkiInitSettings(given) }),
  },
  {
    name: "issue",
    about: "make a node's certificate and key, beside the cluster CA's certificate",
    flags: pkiIssueFlags,
    argument: "node ID: 1 to 63 of a-z, 0-9, . and -",
    parse: (given, id) => ({
      command: "pki issue",
      options: parsePkiIssueSettings(given),
      id: parsePkiArgument(id),
    }),
  },
];

/** Runs what was asked for. Commands are loaded here and not before: help and errors must not wait for gRPC or SQLite. */
export async function execute(
  invocation: Exclude<Invocation, { readonly command: "usage" }>,
  context: CommandContext,
): Promise<ExitStatus> {
  const { command } = invocation;
  if (command === "run") return (await import("./commands/run.ts")).run(invocation.settings, context);
  if (command === "down") return (await import("./commands/down.ts")).down(invocation.settings, context);
  if (command === "status")
    return (await import("./commands/status.ts")).status(invocation.settings, context);
  if (command === "pubkey")
    return (await import("./commands/pubkey.ts")).pubkey(invocation.settings, context);
  if (command === "curator") {
    return (await import("./commands/curator.ts")).runCurator(invocation.settings.options, context);
  }
  if (command === "help") {
    context.stdout(invocation.text);
    return exitStatus.ok;
  }
  if (command === "pki init") return (await import("./commands/pki.ts")).pkiInit(invocation.options, context);
  if (command === "pki issue") {
    return (await import("./commands/pki.ts")).pkiIssue(invocation.options, invocation.id, context);
  }
  const node = await import("./commands/node.ts");
  if (command === "node list") return node.nodeList(invocation.options, context);
  if (command === "node remove") return node.nodeRemove(invocation.options, invocation.id, context);
  return node.nodeAllow(invocation.options, invocation.id, context);
}

/** How an invocation wants its log. */
export function logSettingsOf(invocation: Invocation): LogSettings {
  return invocation.command === "run" || invocation.command === "curator"
    ? invocation.settings.log
    : defaultLogSettings;
}

/** What stands below the help of the program, laid out by commander as what is above it. */
function notes(): string {
  const help = new Help();
  help.prepareContext({ helpWidth: helpColumns });
  const exits = exitMeanings.map(([exit, meaning]) => help.formatItem(String(exit), 2, meaning, help));
  const lines = ["", help.boxWrap(environmentNote, helpColumns), "", "Exit status:", ...exits];
  return `${lines.join("\n")}\n`;
}

function versionLine(): string {
  return `clusternet ${version} (commit ${commit}, ${process.platform}-${process.arch})`;
}

/** Makes a command throw instead of ending the process, and say nothing but through `show`. */
function quiet(command: Command, show: (text: string) => void): Command {
  return (
    command
      .helpCommand(false)
      .helpOption("-h, --help", "print this help")
      // Defaults and variables stand in the descriptions already.
      .configureHelp({ optionDescription: (option) => option.description })
      .configureOutput({
        writeOut: show,
        writeErr: show,
        // Errors are put into our own words by `exitOverride`.
        outputError: () => {},
        getOutHelpWidth: () => helpColumns,
        getErrHelpWidth: () => helpColumns,
        getOutHasColors: () => false,
        getErrHasColors: () => false,
      })
      .exitOverride((error) => {
        throw inOurWords(error, command);
      })
  );
}

/** Adds flags that collect every occurrence: whether one may come twice is decided with the environment. */
function addFlags(command: Command, specs: readonly FlagSpec[], variables: string): Occurrences {
  const occurrences = new Map<string, string[]>();
  const names = new Set(specs.map(({ name }) => `--${name}`));
  for (const spec of specs) {
    const option = new Option(flagsOf(spec), aboutFlag(spec, variables)).hideHelp(spec.later !== undefined);
    if (spec.value === undefined) option.preset("true");
    if (spec.bare !== undefined) option.preset(spec.bare);
    option.argParser((text: string) => {
      if (spec.value !== undefined && names.has(text)) throw missingValue(spec.name, spec.value, text);
      occurrences.set(spec.name, [...(occurrences.get(spec.name) ?? []), text]);
      return true;
    });
    command.addOption(option);
  }
  return occurrences;
}

function flagsOf({ name, value, bare }: FlagSpec): string {
  if (value === undefined) return `--${name}`;
  return bare === undefined ? `--${name} <${value}>` : `--${name} [${value}]`;
}

function aboutFlag(spec: FlagSpec, variables: string): string {
  const repeatable = spec.repeatable === true ? "; repeatable" : "";
  const shownDefault = spec.shownDefault === undefined ? "" : ` (default: ${spec.shownDefault})`;
  return `${spec.about}${repeatable}${shownDefault} [${variableOf(spec, variables)}]`;
}

function pathOf(command: Command): string {
  return command.parent === null ? command.name() : `${pathOf(command.parent)} ${command.name()}`;
}

/** What commander found, as one line that says what was found and what was expected; what is no error stays. */
function inOurWords(error: CommanderError, command: Command): Error {
  const path = pathOf(command);
  const [, found = "", , suggestion] = /'(.*)'(\n\(Did you mean (.*)\?\))?/s.exec(error.message) ?? [];
  const instead =
    suggestion === undefined
      ? `see \`${path} --help\``
      : `did you mean ${suggestion.replace("one of ", "")}?`;
  switch (error.code) {
    case "commander.unknownOption": {
      const name = found.split("=", 1)[0] ?? found;
      const isSwitch = command.options.some((option) => option.long === name && option.isBoolean());
      return new UsageError(
        found.includes("=") && isSwitch
          ? `Cannot use ${quote(found)}: ${name} is a switch, expected no value`
          : `Cannot use flag ${quote(found)}: \`${path}\` has none of that name, ${instead}`,
      );
    }
    case "commander.unknownCommand":
      return new UsageError(
        `Cannot use command ${quote(found)}: \`${path}\` has none of that name, ${instead}`,
      );
    case "commander.optionMissingArgument": {
      const option = command.options.find(({ flags }) => flags === found);
      const value = /<(.*)>/.exec(found)?.[1] ?? "a value";
      return missingValue(option?.name() ?? found, value, undefined);
    }
    case "commander.missingArgument":
      return new UsageError(`Cannot run \`${path}\` without ${found}: no argument was given, expected one`);
    case "commander.excessArguments": {
      const most = command.registeredArguments.length;
      const excess = command.args
        .slice(most)
        .map((text) => quote(text))
        .join(" ");
      const expected = most === 0 ? "no argument" : `${most} argument`;
      return new UsageError(`Cannot use argument ${excess}: \`${path}\` expected ${expected}`);
    }
    default:
      return error;
  }
}

function missingValue(name: string, value: string, next: string | undefined): UsageError {
  const found = next === undefined ? "nothing follows it" : `flag ${next} follows it`;
  return new UsageError(`Cannot use --${name}: ${found}, expected ${value}`);
}
