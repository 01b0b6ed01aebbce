/**
 * `wg` and `ip` that can be broken while an agent runs: a directory that is all of its PATH.
 *
 *     const programs = await BrokenPrograms.create(await lab.directory());
 *     Stage.create(lab, { agent: async () => ({ wrapper: programs.wrapper }) });
 *     await programs.break("wg", "hanging");
 *     await programs.mend("wg");
 *
 * Only calls that begin while it is broken are: a program that runs already goes on.
 */
import { chmod, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";

/** Each in a way of its own. */
export const breakages = ["missing", "failing", "hanging", "printing garbage"] as const;
export type Breakage = (typeof breakages)[number];

const whole = "whole";

const names = ["wg", "ip", "wireguard-go", "setpriv", "true"] as const;

export class BrokenPrograms {
  readonly #directory: string;

  private constructor(directory: string) {
    this.#directory = directory;
  }

  /** Fills an empty directory. */
  static async create(directory: string): Promise<BrokenPrograms> {
    const programs = new BrokenPrograms(directory);
    for (const name of names) {
      const real = Bun.which(name);
      if (real === null) throw new Error(`Cannot break program "${name}": it is not installed`);
      await programs.mend(name);
      const script = [
        "#!/bin/sh",
        `read -r how <'${programs.#pathOf(name)}.how'`,
        'case "$how" in',
        `failing) echo "${name}: Cannot allocate memory" >&2; exit 1 ;;`,
        "hanging) exec /bin/sleep 3600 ;;",
        `printing*) printf '\\377\\000[{"dst":7}]\\t\\033]0;x\\007\\n'; exit 0 ;;`,
        "esac",
        `exec '${real}' "$@"`,
      ];
      await writeFile(programs.#pathOf(name), `${script.join("\n")}\n`);
      await chmod(programs.#pathOf(name), 0o755);
    }
    return programs;
  }

  /** In front of a command: it finds these programs and no others. */
  get wrapper(): readonly string[] {
    return ["/usr/bin/env", `PATH=${this.#directory}`];
  }

  /** From the next call on. */
  async break(name: string, how: Breakage): Promise<void> {
    if (how === "missing") await rename(this.#pathOf(name), `${this.#pathOf(name)}.away`);
    else await writeFile(`${this.#pathOf(name)}.how`, `${how}\n`);
  }

  /** It is as it was. */
  async mend(name: string): Promise<void> {
    if (await Bun.file(`${this.#pathOf(name)}.away`).exists()) {
      await rename(`${this.#pathOf(name)}.away`, this.#pathOf(name));
    }
    await writeFile(`${this.#pathOf(name)}.how`, `${whole}\n`);
  }

  #pathOf(name: string): string {
    return join(this.#directory, name);
  }
}
