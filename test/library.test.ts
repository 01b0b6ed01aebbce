/**
 * The library as another project sees it: packed, installed, type-checked and run there; and the README's examples.
 *
 * What the Go package documents of Prefixes is here sentence by sentence, in our words (of Service:
 * integration/library.test.ts); what the Go code was seen to give is in prefixes.test.ts.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import packageJson from "../package.json" with { type: "json" };
import { Prefixes } from "../src/index.ts";
import { OutsideProject, resolutions } from "./fakes/outside-project.ts";

const root = join(import.meta.dir, "..");
const ways = Object.keys(resolutions) as (keyof typeof resolutions)[];

/** Prints what the package documents of Prefixes, and that a Service can be made of nothing but what it exports. */
const user = `
import { createCurator, Prefixes, Service, Value } from "clusternet";
import type { NetworkStatus, ServiceOptions } from "clusternet";

const options: ServiceOptions = {
  curator: createCurator({ addresses: ["127.0.0.1:7835"], nodeId: "a", insecure: true }),
  nodeId: "a",
  clusterNet: "10.192.0.0/11",
  dataDirectory: "/nonexistent",
  localKubernetesPodNetwork: new Value<Prefixes | undefined>(undefined),
  network: new Value<NetworkStatus | undefined>({ externalAddress: "192.0.2.1" }),
};
const service: { run(signal: AbortSignal): Promise<void> } = new Service(options);
const prefixes = new Prefixes(["10.192.2.0/24"]);
const updated: void = prefixes.update(new Prefixes(["10.192.1.0/24", "10.192.2.0/24"]));
const same: boolean = prefixes.equal(new Prefixes(["10.192.1.0/24", "10.192.2.0/24"]));
const text: string = prefixes.toString();
console.log(JSON.stringify({ text, same, updated: updated === undefined, run: typeof service.run }));
`;

/** Each of these lines must be refused: types that were all \`any\` would let everything pass. */
const wrongUser = `
import { Prefixes, Service, Value } from "clusternet";
new Service({ nodeId: "a" });
new Prefixes([1]);
new Prefixes(["10.192.0.0/24"]).equal("10.192.0.0/24");
new Value<Prefixes>("10.192.0.0/24");
`;

describe("the package, outside of this project", () => {
  let outside: OutsideProject;

  beforeAll(async () => {
    outside = await OutsideProject.create();
    await outside.write("user.ts", user);
    await outside.write("wrong-user.ts", wrongUser);
    const program = await readFile(join(root, "test/fakes/library-user.ts"), "utf8");
    await outside.write("library-user.ts", program.replace("../../src/index.ts", "clusternet"));
  }, 60_000);
  afterAll(() => outside?.[Symbol.asyncDispose]());

  test("holds sources, types and documents, and nothing else", () => {
    const kinds = new Set(
      outside.packed.map((name) =>
        name
          .replace(/^src\/.*\.ts$/, "src/*.ts")
          .replace(/^dist\/lib\/.*\.d\.ts$/, "dist/lib/*.d.ts")
          .replace(/^docs\/[^/]+\.(?:md|svg)$/, "docs/*"),
      ),
    );
    expect([...kinds].toSorted()).toEqual([
      "ARCHITECTURE.md",
      "CHANGELOG.md",
      "CONTRIBUTING.md",
      "LICENSE",
      "README.md",
      "dist/lib/*.d.ts",
      "docs/*",
      "package.json",
      "src/*.ts",
    ]);
  });

  test.each(ways)("its types check with moduleResolution %s, declarations included", async (way) => {
    expect(await outside.typeCheck(way, "user.ts", "library-user.ts")).toBe("");
  });

  test.each(ways)("its types refuse wrong use with moduleResolution %s", async (way) => {
    const said = await outside.typeCheck(way, "wrong-user.ts");
    const lines = [...said.matchAll(/^wrong-user\.ts\((\d+),/gm)].map(([, line]) => Number(line));
    expect(lines).toEqual([3, 4, 5, 6]);
  });

  test("it runs on Bun", async () => {
    expect(JSON.parse(await outside.run("user.ts"))).toEqual({
      text: "10.192.1.0/24, 10.192.2.0/24",
      same: true,
      updated: true,
      run: "function",
    });
  });

  test("it bears the version of its package.json", async () => {
    const program = `import { version } from "./node_modules/clusternet/src/version.ts"; console.log(version);`;
    await outside.write("version.ts", program);
    expect(await outside.run("version.ts")).toBe(`${packageJson.version}\n`);
  });

  test.each(ways)("the README's examples type-check with moduleResolution %s", async (way) => {
    const readme = await readFile(join(root, "README.md"), "utf8");
    const examples = [...readme.matchAll(/^```ts\n([^]*?)^```$/gm)].map(([, text = ""]) => text);
    expect(examples).toHaveLength(2);
    const names = examples.map((_, index) => `readme-${index}.ts`);
    for (const [index, example] of examples.entries()) {
      expect(example).toContain('from "clusternet"');
      await outside.write(`readme-${index}.ts`, example);
    }
    expect(await outside.typeCheck(way, ...names)).toBe("");
  });
});

const own = (): Prefixes => new Prefixes(["10.192.9.0/24", "10.192.1.0/24"]);

/** The texts of `own()` after an update. */
function updated(by: Prefixes): readonly string[] {
  const prefixes = own();
  prefixes.update(by);
  return Array.from(prefixes, ({ text }) => text);
}

describe("Prefixes, as documented", () => {
  test.each([
    {
      sentence: "are the network prefixes that a node is to announce into the mesh",
      seen: () => Array.from(own(), ({ text }) => text),
      want: ["10.192.9.0/24", "10.192.1.0/24"],
    },
    {
      sentence: "update copies every prefix of the other into this one",
      seen: () => updated(new Prefixes(["fd10:c1::/64", "10.192.2.0/24"])),
      want: ["10.192.9.0/24", "10.192.1.0/24", "fd10:c1::/64", "10.192.2.0/24"],
    },
    {
      sentence: "update merges duplicates, those within the other too",
      seen: () => updated(new Prefixes(["10.192.1.0/24", "10.192.2.0/24", "10.192.2.0/24"])),
      want: ["10.192.9.0/24", "10.192.1.0/24", "10.192.2.0/24"],
    },
    {
      sentence: "as text are separated by commas, whatever order they came in",
      seen: () => [own().toString(), new Prefixes().toString()],
      want: ["10.192.1.0/24, 10.192.9.0/24", ""],
    },
    {
      sentence: "are equal when they are the same ones, none at all being as good as an empty set",
      seen: () => [
        own().equal(new Prefixes(["10.192.1.0/24", "10.192.9.0/24"])),
        own().equal(new Prefixes(["10.192.1.0/24"])),
        own().equal(undefined),
        new Prefixes().equal(undefined),
      ],
      want: [true, false, false, true],
    },
  ])("$sentence", ({ seen, want }) => {
    expect<readonly unknown[]>(seen()).toEqual(want);
  });
});
