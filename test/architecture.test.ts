/**
 * What the documents say of the program, held against the program: files, flags and their defaults, kinds of
 * problems, exit statuses.
 */
import { describe, expect, test } from "bun:test";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { parseCommandLine } from "../src/cli.ts";
import { exitMeanings, exitStatus } from "../src/errors.ts";
import { curatorFlags, type FlagSpec, runFlags } from "../src/flags.ts";

const root = join(import.meta.dir, "..");
const read = (name: string): Promise<string> => readFile(join(root, name), "utf8");
const sorted = (texts: Iterable<string>): readonly string[] =>
  [...new Set(texts)].toSorted((a, b) => (a < b ? -1 : 1));

/** Cells of the rows of the table that has this in its header, without header and ruler. */
async function tableOf(file: string, header: string): Promise<readonly (readonly string[])[]> {
  const lines = (await read(file)).split("\n");
  const from = lines.findIndex((line) => line.startsWith("|") && line.includes(header));
  if (from === -1) throw new Error(`Cannot find the table "${header}" in ${file}`);
  const length = lines.slice(from).findIndex((line) => !line.startsWith("|"));
  return lines.slice(from + 2, length === -1 ? undefined : from + length).map((line) =>
    line
      .split(/(?<!\\)\|/)
      .slice(1, -1)
      .map((cell) => cell.trim()),
  );
}

/** What stands in backticks. */
const quoted = (text: string): readonly string[] =>
  Array.from(text.matchAll(/`([^`]+)`/g), ([, inside = ""]) => inside);
const flagsIn = (text: string): readonly string[] =>
  Array.from(text.matchAll(/--([a-z][a-z-]*)/g), ([, name = ""]) => name);

/** The flags that the help of a command lists, without `--help` itself. */
function flagsOfHelp(command: string): readonly string[] {
  const help = parseCommandLine([command, "--help"], {});
  if (help.command !== "help") throw new Error(`"${command} --help" gave no help`);
  // Only what a line begins with is a flag of the command; the text beside it may name others.
  const flags = Array.from(help.text.matchAll(/^ {2}--([a-z][a-z-]*)/gm), ([, name = ""]) => name);
  return flags.filter((name) => name !== "help");
}

/** Paths and globs of the file table; a name without folder lies in that of the one before it. */
async function listedFiles(): Promise<readonly string[]> {
  return (await tableOf("ARCHITECTURE.md", "| file |")).flatMap(([names = ""]) => {
    let folder = "";
    return quoted(names).map((name) => {
      const path = name.includes("/") ? name : `${folder}${name}`;
      folder = path.slice(0, path.lastIndexOf("/") + 1);
      return path.endsWith("/") ? `${path}**` : path;
    });
  });
}

function sourceFiles(): Promise<string[]> {
  return Array.fromAsync(new Bun.Glob("src/**/*.ts").scan({ cwd: root }));
}

describe("ARCHITECTURE.md", () => {
  test("names every file of src", async () => {
    const globs = (await listedFiles()).map((path) => new Bun.Glob(path));
    expect(sorted((await sourceFiles()).filter((file) => !globs.some((glob) => glob.match(file))))).toEqual(
      [],
    );
  });

  test("names no file that is not there", async () => {
    const files = await sourceFiles();
    const missing = (await listedFiles()).filter(
      (path) => !files.some((file) => new Bun.Glob(path).match(file)),
    );
    expect(missing).toEqual([]);
  });
});

/** The commands that the help of `words` lists, with those below them instead of their own name. */
function commandsOfHelp(words: readonly string[] = []): readonly string[] {
  const help = parseCommandLine([...words, "--help"], {});
  const listed = help.command === "help" ? (/^Commands:\n((?: .*\n)+)/m.exec(help.text)?.[1] ?? "") : "";
  const names = Array.from(listed.matchAll(/^ {2}([a-z]+)/gm), ([, name = ""]) => [...words, name]);
  return names.length === 0 ? [words.join(" ")] : names.flatMap((name) => commandsOfHelp(name));
}

describe("README.md", () => {
  test("names exactly the commands that the help names", async () => {
    const rows = await tableOf("README.md", "| command | does |");
    const named = rows
      .flatMap(([commands = ""]) => quoted(commands))
      .map((text) => text.replace(/ [A-Z-]+$/, ""));
    expect(sorted(named)).toEqual(sorted(commandsOfHelp()));
  });

  test.each(["run", "curator"])("names exactly the flags that `%s --help` names", async (command) => {
    const rows = await tableOf("README.md", `| flag of \`${command}\` |`);
    expect(sorted(rows.flatMap(([flags = ""]) => flagsIn(flags)))).toEqual(sorted(flagsOfHelp(command)));
  });

  test.each([
    { command: "run", specs: runFlags },
    { command: "curator", specs: curatorFlags },
  ])("gives the defaults that the help of $command gives", async ({ command, specs }) => {
    const rows = await tableOf("README.md", `| flag of \`${command}\` |`);
    const differing = rows
      .filter(([, defaults]) => defaults !== "as for `run`")
      .flatMap(([flags = "", defaults = ""]) => {
        const given = defaults.split(", ").map((each) => each.replaceAll("`", ""));
        return flagsIn(flags).map((name, index) => ({ name, given: given[index] }));
      })
      .filter(({ name, given }) => !isDefault(specs, name, given));
    expect(differing).toEqual([]);
  });

  test("names the flags that are not in this version", async () => {
    const later = [...runFlags, ...curatorFlags].filter(({ later }) => later !== undefined);
    const paragraph = /^Metrics \([^]*?\n\n/m.exec(await read("README.md"))?.[0] ?? "";
    expect(sorted(flagsIn(paragraph))).toEqual(sorted(later.map(({ name }) => name)));
  });

  test.each(["README.md", "docs/contract.md"])(
    "%s says of each exit status what `--help` says",
    async (file) => {
      expect(await tableOf(file, "| status | meaning |")).toEqual(
        exitMeanings.map(([status, meaning]) => [String(status), meaning]),
      );
    },
  );

  test("`--help` says what every exit status means", () => {
    const help = parseCommandLine(["--help"], {});
    const text = "text" in help ? help.text.replace(/\s+/g, " ") : "";
    expect(exitMeanings.map(([status]) => status)).toEqual(Object.values(exitStatus));
    for (const [status, meaning] of exitMeanings) expect(text).toContain(` ${status} ${meaning}`);
  });
});

describe("docs/contract.md", () => {
  test("names exactly the flags of `run`, those of later versions included", async () => {
    const rows = await tableOf("docs/contract.md", "| flag | default | meaning |");
    expect(sorted(rows.flatMap((cells) => flagsIn(cells.join(" "))))).toEqual(
      sorted(runFlags.map(({ name }) => name)),
    );
  });

  test("names exactly the kinds of problems that there are", async () => {
    const paragraph = /Kinds\s+of\s+problems:\s([^]*?)\n\n/.exec(await read("docs/contract.md"))?.[1] ?? "";
    const type = /export type ProblemKind =([^]*?);/.exec(await read("src/core/problem.ts"))?.[1] ?? "";
    const kinds = sorted(Array.from(type.matchAll(/"([a-z-]+)"/g), ([, kind = ""]) => kind));
    expect(kinds.length).toBeGreaterThan(0);
    expect(sorted(quoted(paragraph))).toEqual(kinds);
  });
});

/** Without a default a switch is off, and a value is none. */
function isDefault(specs: readonly FlagSpec[], name: string, given: string | undefined): boolean {
  const spec = specs.find((each) => each.name === name);
  return given === (spec?.shownDefault ?? (spec?.value === undefined ? "off" : "none"));
}
