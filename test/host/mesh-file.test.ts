/** The file of the last known good mesh: read at start, written whole, never shown. */
import { describe, expect, test } from "bun:test";
import { chmod, lstat, mkdir, readFile, symlink, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { parsePrivateKey, parsePublicKey } from "../../src/core/key.ts";
import type { Mesh } from "../../src/core/mesh.ts";
import type { NodeId } from "../../src/core/node.ts";
import { parseAddress, parsePrefix } from "../../src/core/prefix.ts";
import { renderWgConfig } from "../../src/core/wg-config.ts";
import { MeshFile } from "../../src/host/mesh-file.ts";
import { failure, octal, withDirectory } from "./temporary.ts";

const key = parsePrivateKey("4LOVwL9lT5mEHRmGkMdXHJg0tVFTZ7m7gvmpxmSzN1U=");
const otherKey = parsePublicKey("IyTdITtoHNmoFpT1p2ud1gXnZ0zTexpiJBIpRl1pMUs=");
const mesh: Mesh = {
  peers: [
    {
      nodeId: "b" as NodeId,
      publicKey: otherKey,
      address: parseAddress("192.0.2.2"),
      prefixes: [parsePrefix("10.192.2.0/24"), parsePrefix("192.0.2.2/32")],
    },
  ],
};
const text = renderWgConfig({ listenPort: 7838, mesh }, key);

async function withMeshFile(use: (file: MeshFile, path: string) => Promise<void>): Promise<void> {
  await withDirectory(async (directory) => {
    const path = join(directory, "clusternet.conf");
    await use(new MeshFile(path), path);
  });
}

describe("MeshFile.read()", () => {
  test("finds nothing where there is no file", async () => {
    await withMeshFile(async (file) => {
      expect(await file.read(key.publicKey)).toEqual({ kind: "none" });
    });
  });

  test("gives back the mesh that was written, with its key, port and time", async () => {
    await withMeshFile(async (file, path) => {
      await file.write(text);
      await utimes(path, 1000, 2000);
      expect(await new MeshFile(path).read(key.publicKey)).toEqual({
        kind: "mesh",
        nodes: [
          expect.objectContaining({
            id: "b",
            publicKey: otherKey,
            externalAddress: "192.0.2.2",
            prefixes: ["10.192.2.0/24", "192.0.2.2/32"],
          }),
        ],
        listenPort: 7838,
        publicKey: key.publicKey,
        writtenAt: new Date(2_000_000),
        problems: [],
      });
    });
  });

  test("reports a file of another key, and says which key it has", async () => {
    await withMeshFile(async (file, path) => {
      await file.write(text);
      expect(await file.read(otherKey)).toEqual({
        kind: "unusable",
        publicKey: key.publicKey,
        problems: [
          {
            kind: "source-failed",
            message: `Cannot use the last mesh from file "${path}": it was written for public key ${key.publicKey}, expected ${otherKey}`,
          },
        ],
      });
      expect((await file.read()).kind).toBe("mesh");
    });
  });

  test("closes a file that others could read and reports it, also one that is unusable", async () => {
    await withMeshFile(async (file, path) => {
      for (const content of [text, "damaged"]) {
        await writeFile(path, content);
        await chmod(path, 0o644);
        const read = await file.read(key.publicKey);
        expect(read.kind === "none" ? [] : read.problems.map(({ kind }) => kind)).toContain("key-mode");
        expect(octal((await lstat(path)).mode)).toBe("600");
      }
    });
  });

  test("leaves a file that others could read as it is when it is only looked at, and reports it", async () => {
    await withMeshFile(async (file, path) => {
      await writeFile(path, text);
      await chmod(path, 0o644);
      const before = await lstat(path, { bigint: true });
      const read = await file.read(key.publicKey, { closeToOthers: false });
      expect(read.kind === "none" ? [] : read.problems).toEqual([
        {
          kind: "key-mode",
          message: `Mesh file "${path}" had mode 0644, expected 0600: the private key in it may have leaked; it is as it was`,
        },
      ]);
      const after = await lstat(path, { bigint: true });
      expect([after.mode, after.ino, after.ctimeNs]).toEqual([before.mode, before.ino, before.ctimeNs]);
    });
  });

  test.each([
    { name: "empty", content: "" },
    { name: "cut in the middle", content: text.slice(0, text.length - 30) },
    { name: "with a typo in a word", content: text.replace("PrivateKey", "PrivatKey") },
    {
      name: "with a typo in the key",
      content: text.replace(key.reveal(), `${key.reveal().slice(0, 20)}!${key.reveal().slice(21)}`),
    },
    { name: "of another program", content: text.replace("# node = b\n", "") },
    { name: "of binary rubbish", content: "\0\u001b[2J\u{fffd}".repeat(100) },
  ])("reports a file that is $name, shows none of it and leaves it", async ({ content }) => {
    await withMeshFile(async (file, path) => {
      await writeFile(path, content, { mode: 0o600 });
      const read = await file.read(key.publicKey);
      expect(read).toEqual({
        kind: "unusable",
        problems: [
          {
            kind: "source-failed",
            message: expect.stringContaining(`Cannot use the last mesh from file "${path}": `),
          },
        ],
      });
      const shown = JSON.stringify(read);
      for (let at = 0; at + 8 <= 44; at++) expect(shown).not.toContain(key.reveal().slice(at, at + 8));
      expect(shown).not.toContain("\\u001b");
      expect(await readFile(path, "utf8")).toBe(content);
    });
  });

  test.each([
    {
      name: "a directory",
      make: (path: string) => mkdir(path),
      found: "it is a directory, expected a regular file",
    },
    {
      name: "a link to nowhere",
      make: (path: string) => symlink("nowhere", path),
      found: "it is a symbolic link to nowhere, expected a regular file",
    },
  ])("reports $name", async ({ make, found }) => {
    await withMeshFile(async (file, path) => {
      await make(path);
      const message = `Cannot use the last mesh from file "${path}": ${found}`;
      expect(await file.read()).toEqual({ kind: "unusable", problems: [{ kind: "source-failed", message }] });
    });
  });
});

describe("MeshFile.write()", () => {
  test("writes over a damaged file, and not again what is there", async () => {
    await withMeshFile(async (file, path) => {
      await writeFile(path, "damaged");
      await file.read(key.publicKey);
      const writes = [await file.write(text), await file.write(text)];
      expect(writes.map(({ isNew }) => isNew)).toEqual([true, false]);
      expect([await readFile(path, "utf8"), octal((await lstat(path)).mode)]).toEqual([text, "600"]);
    });
  });

  test("does not write what was read at start", async () => {
    await withMeshFile(async (file, path) => {
      await file.write(text);
      const again = new MeshFile(path);
      await again.read(key.publicKey);
      expect((await again.write(text)).isNew).toBe(false);
    });
  });

  test("says why it cannot, without the content", async () => {
    await withMeshFile(async (file, path) => {
      await mkdir(path);
      expect((await failure(() => file.write(text))).message).toBe(
        `Cannot write "${path}": it is a directory, expected a regular file`,
      );
    });
  });
});
