/** A private socket whose directory is taken away: what is said of it, and that whoever serves can still stop. */
import { expect, test } from "bun:test";
import { mkdir, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { ClusternetError } from "../../src/errors.ts";
import { askPrivateSocket, servePrivateSocket } from "../../src/host/private-socket.ts";
import { withDirectory } from "./temporary.ts";

test("a socket whose directory has become a file is bound again when that is back, and stops in both", async () => {
  await withDirectory(async (root) => {
    const directory = join(root, "data");
    const path = join(directory, "x.sock");
    await mkdir(directory);
    const server = servePrivateSocket(path, async () => new Response("here"));
    const failure = (): Promise<unknown> => server.ensure().catch((error: unknown) => error);
    await rename(directory, `${directory}-away`);
    await writeFile(directory, "");
    const refused = await failure();
    expect(refused).toBeInstanceOf(ClusternetError);
    expect(refused).toMatchObject({
      message: expect.stringMatching(/^Cannot listen on socket ".*x\.sock": /),
    });
    await rm(directory);
    await mkdir(directory);
    expect(await failure()).toBeUndefined();
    const asked = { pathname: "/", timeoutMs: 5_000 };
    expect(await askPrivateSocket(path, asked)).toMatchObject({ kind: "answer", text: "here" });
    await rm(directory, { recursive: true });
    await writeFile(directory, "");
    await server.stop();
  });
});
