/**
 * A fake Curator as a process of its own, for a network namespace that the test does not live in, or to be stopped
 * with SIGSTOP: `bun test/fakes/curator-process.ts --listen HOST:PORT --control /path.sock`, with TLS when
 * `--ca`, `--cert` and `--key` are given too.
 *
 * It prints its address on stdout when it listens, and takes HTTP on the control socket: POST `{method, args}` calls
 * that method of FakeCurator, and the answer is its result, both as JSON with bytes as `{"$bytes": base64}`. It ends
 * when its stdin ends, so it never outlives the test that started it. Tests use `RemoteCurator` (fakes/remote-curator.ts).
 */
import { parseArgs } from "node:util";
import { FakeCurator } from "./curator.ts";
import { fromJson, isRemoteMethod, toJson } from "./remote-curator.ts";

const { values } = parseArgs({
  options: {
    listen: { type: "string", default: "127.0.0.1:0" },
    control: { type: "string" },
    ca: { type: "string" },
    cert: { type: "string" },
    key: { type: "string" },
  },
});
if (values.control === undefined) throw new Error("Cannot start: --control is missing, expected a path");

const { ca, cert, key } = values;
const curator = await FakeCurator.start({
  listen: values.listen,
  ...(ca === undefined || cert === undefined || key === undefined ? {} : { tls: { ca, cert, key } }),
});
const control = Bun.serve({
  unix: values.control,
  error: (error) => new Response(error.message, { status: 500 }),
  async fetch(request) {
    const { method, args } = fromJson(await request.text()) as { method: string; args: unknown[] };
    if (!isRemoteMethod(method)) return new Response(`no method ${method}`, { status: 404 });
    const call = curator[method].bind(curator) as (...args: unknown[]) => unknown;
    return new Response(toJson((await call(...args)) ?? null));
  },
});
console.log(curator.address);

for await (const _ of Bun.stdin.stream()) {
  // Nothing is said there: only its end matters.
}
await control.stop(true);
curator.stop();
process.exit(0);
