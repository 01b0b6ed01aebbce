/**
 * A project of somebody else that has installed this one: what `npm pack` makes of the working tree, unpacked into a
 * node_modules of its own, without a registry.
 *
 * Only what package.json declares is there beside it: a dependency that is used and not declared is not found. The
 * declared ones, @types/bun and the compiler are links to this project's.
 */
import { mkdir, mkdtemp, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import packageJson from "../../package.json" with { type: "json" };

const root = join(import.meta.dir, "../..");

/** How a program outside finds the library's types: the two ways of TypeScript that know "exports". */
export const resolutions = {
  bundler: { module: "Preserve", moduleResolution: "bundler" },
  nodenext: { module: "NodeNext", moduleResolution: "nodenext" },
} as const;

export class OutsideProject implements AsyncDisposable {
  readonly folder: string;
  /** Names of the files in the package, sorted. */
  readonly packed: readonly string[];

  private constructor(folder: string, packed: readonly string[]) {
    this.folder = folder;
    this.packed = packed;
  }

  static async create(): Promise<OutsideProject> {
    const folder = await mkdtemp(join(tmpdir(), "clusternet-outside-"));
    try {
      const installed = join(folder, "node_modules/clusternet");
      await mkdir(installed, { recursive: true });
      // Its cache is also where npm writes its logs.
      await run(["npm", "pack", "--offline", "--pack-destination", folder], {
        cwd: root,
        env: { ...process.env, npm_config_cache: join(folder, "npm"), npm_config_update_notifier: "false" },
      });
      const [archive = "none"] = (await readdir(folder)).filter((name) => name.endsWith(".tgz"));
      const listed = await run(["tar", "-tzf", join(folder, archive)], { cwd: folder });
      await run(["tar", "-xzf", join(folder, archive), "-C", installed, "--strip-components=1"], {
        cwd: folder,
      });
      for (const name of [...Object.keys(packageJson.dependencies), "@types/bun"]) {
        const link = join(folder, "node_modules", name);
        await mkdir(dirname(link), { recursive: true });
        await symlink(join(root, "node_modules", name), link);
      }
      const project = new OutsideProject(
        folder,
        listed
          .trim()
          .split("\n")
          .map((name) => name.replace(/^package\//, ""))
          .toSorted(),
      );
      await project.write("package.json", JSON.stringify({ name: "outside", type: "module" }));
      return project;
    } catch (error) {
      await rm(folder, { recursive: true, force: true });
      throw error;
    }
  }

  /** Writes a file of the project and returns its path. */
  async write(name: string, text: string): Promise<string> {
    const path = join(this.folder, name);
    await writeFile(path, text);
    return path;
  }

  /** What the compiler says to these files, at its strictest and with all declarations checked; empty: nothing. */
  async typeCheck(resolution: keyof typeof resolutions, ...files: readonly string[]): Promise<string> {
    const config = `tsconfig.${resolution}.json`;
    const compilerOptions = {
      ...resolutions[resolution],
      target: "ESNext",
      lib: ["ESNext"],
      types: ["bun"],
      strict: true,
      exactOptionalPropertyTypes: true,
      noUncheckedIndexedAccess: true,
      noUnusedLocals: true,
      verbatimModuleSyntax: true,
      skipLibCheck: false,
      noEmit: true,
    };
    await this.write(config, JSON.stringify({ compilerOptions, files }));
    const compiler = join(root, "node_modules/.bin/tsc");
    const child = Bun.spawn([process.execPath, compiler, "-p", config, "--pretty", "false"], {
      cwd: this.folder,
      stdin: "ignore",
      stdout: "pipe",
      stderr: "inherit",
    });
    const said = await new Response(child.stdout).text();
    const status = await child.exited;
    return status !== 0 && said === "" ? `tsc ended with status ${status}` : said;
  }

  /** Runs a file of the project with Bun and returns what it prints. Throws when it fails. */
  async run(file: string): Promise<string> {
    return await run([process.execPath, file], { cwd: this.folder });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.folder, { recursive: true, force: true });
  }
}

async function run(
  argv: readonly string[],
  options: { readonly cwd: string; readonly env?: Readonly<Record<string, string | undefined>> },
): Promise<string> {
  const child = Bun.spawn([...argv], { ...options, stdin: "ignore", stdout: "pipe", stderr: "pipe" });
  const [stdout, stderr] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  const status = await child.exited;
  if (status !== 0) throw new Error(`"${argv.join(" ")}" ended with status ${status}:\n${stdout}${stderr}`);
  return stdout;
}
