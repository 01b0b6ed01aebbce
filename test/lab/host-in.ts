/**
 * What a host under test is made of, in a namespace of the lab: the program's own ways to run commands, which go in
 * there, and a directory for its files. All of it ends with the lab.
 */
import { readFile } from "node:fs/promises";
import {
  createFollowCommand,
  createRunCommand,
  type FollowCommand,
  type RunCommand,
} from "../../src/host/command.ts";
import type { Lab } from "./lab.ts";
import type { Namespace } from "./namespace.ts";

export interface HostIn {
  readonly namespace: Namespace;
  readonly pid: number;
  /** A directory for this host's files. */
  readonly directory: string;
  readonly run: RunCommand;
  readonly follow: FollowCommand;
  /** Runs words given as one text without quotes in them. */
  readonly sh: (text: string) => Promise<string>;
  readonly readUnixSockets: () => Promise<string>;
}

/** A host in that namespace; without one in a new one that is on no network. */
export async function hostIn(lab: Lab, given?: Namespace): Promise<HostIn> {
  const namespace = given ?? (await lab.alone());
  const { pid } = namespace;
  const [run, follow] = [createRunCommand(), createFollowCommand()];
  const inside = (argv: readonly string[]): string[] => [
    "nsenter",
    "-t",
    String(pid),
    "-n",
    "-m",
    "--",
    ...argv,
  ];
  const runInside: RunCommand = (argv, options) => run(inside(argv), options);
  return {
    namespace,
    pid,
    directory: await lab.directory(),
    run: runInside,
    follow: (argv, signal) => follow(inside(argv), signal),
    sh: (text) => runInside(text.split(" ")),
    readUnixSockets: () => readFile(`/proc/${pid}/net/unix`, "utf8"),
  };
}
