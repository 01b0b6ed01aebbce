/**
 * What a run was made on: the machine, and the version of everything that takes part.
 */
import { statSync } from "node:fs";
import { cpus, loadavg, release, totalmem } from "node:os";
import { binary } from "../paths.ts";

export interface MachineFacts {
  readonly at: string;
  readonly processor: string;
  readonly memoryGigabytes: number;
  readonly kernel: string;
  readonly clusternet: string;
  /** Of the executable. */
  readonly megabytes: number;
  readonly bun: string;
  readonly wg: string;
  readonly wireguardGo: string;
  /** Of the last minute, before the first row. */
  readonly load: number;
}

/** Asks every program for its version. */
export function readMachine(): MachineFacts {
  const all = cpus();
  return {
    at: new Date().toISOString(),
    processor: `${all.length} × ${all[0]?.model ?? "unknown"}`,
    memoryGigabytes: Math.round(totalmem() / 1e9),
    kernel: release(),
    clusternet: firstLine([binary, "--version"]),
    megabytes: Number((statSync(binary).size / 1e6).toFixed(1)),
    bun: Bun.version,
    wg: firstLine(["wg", "--version"]),
    wireguardGo: firstLine(["wireguard-go", "--version"]),
    load: Number((loadavg()[0] ?? 0).toFixed(1)),
  };
}

function firstLine(argv: readonly string[]): string {
  const { stdout } = Bun.spawnSync([...argv], { stdout: "pipe", stderr: "ignore" });
  return stdout.toString().split("\n")[0]?.trim() ?? "";
}

/** In two lines: the machine, and what ran on it. */
export function renderMachine(facts: MachineFacts): string {
  const machine = [
    facts.at,
    facts.processor,
    `${facts.memoryGigabytes} GB`,
    `Linux ${facts.kernel}`,
    `load ${facts.load}`,
  ];
  const programs = [
    `${facts.clusternet} of ${facts.megabytes} MB`,
    `Bun ${facts.bun}`,
    facts.wg.replace(/ - .*/, ""),
    facts.wireguardGo,
  ];
  return `${machine.join(", ")}\n${programs.join(", ")}`;
}
