/**
 * A program of somebody who uses the library, driven by a test from another network namespace:
 *
 *     bun library-user.ts --curator HOST:PORT --node-id ID --data-dir DIR --control /path.sock [--cluster-net CIDR]...
 *
 * POST to the control socket sets the watched values: `{podNetwork: [CIDR...] | null, network: ADDRESS | null}`, what
 * is left out stays. It says "returned" when `run` has, and ends by itself then: nothing of the library may keep it.
 * Tests also copy it into a project outside of this one (fakes/outside-project.ts), where it imports "clusternet".
 */
import { parseArgs } from "node:util";
import {
  createCurator,
  createLog,
  describeError,
  type NetworkStatus,
  Prefixes,
  Service,
  Value,
  type Watched,
} from "../../src/index.ts";

/** A watched value of somebody's own making: what is watched need not be a `Value`. */
class Listened<T> implements Watched<T | undefined> {
  readonly #events = new EventTarget();
  #current: T | undefined;

  get(): T | undefined {
    return this.#current;
  }

  set(next: T | undefined): void {
    this.#current = next;
    this.#events.dispatchEvent(new Event("set"));
  }

  async *watch(signal: AbortSignal): AsyncIterable<T | undefined> {
    while (!signal.aborted) {
      const next = Promise.withResolvers<void>();
      this.#events.addEventListener("set", () => next.resolve(), { once: true });
      signal.addEventListener("abort", () => next.resolve(), { once: true });
      yield this.#current;
      await next.promise;
    }
  }
}

const { values } = parseArgs({
  options: {
    curator: { type: "string", default: "" },
    "node-id": { type: "string", default: "" },
    "data-dir": { type: "string", default: "" },
    control: { type: "string", default: "" },
    "cluster-net": { type: "string", multiple: true, default: ["10.192.0.0/11"] },
  },
});
const log = createLog({ format: "text", level: "debug" }, (line) => process.stderr.write(line));
const podNetwork = new Value<Prefixes | undefined>(undefined);
const network = new Listened<NetworkStatus>();
const service = new Service({
  curator: createCurator({ addresses: [values.curator], nodeId: values["node-id"], insecure: true, log }),
  nodeId: values["node-id"],
  clusterNet: values["cluster-net"],
  dataDirectory: values["data-dir"],
  localKubernetesPodNetwork: podNetwork,
  network,
  wireguard: "userspace",
  resyncSeconds: 2,
  log,
});

const control = Bun.serve({
  unix: values.control,
  async fetch(request) {
    const wanted = (await request.json()) as { podNetwork?: string[] | null; network?: string | null };
    if (wanted.podNetwork !== undefined) {
      podNetwork.set(wanted.podNetwork === null ? undefined : new Prefixes(wanted.podNetwork));
    }
    if (wanted.network !== undefined) {
      network.set(wanted.network === null ? undefined : { externalAddress: wanted.network });
    }
    return new Response();
  },
});

const stop = new AbortController();
process.once("SIGTERM", () => stop.abort());
try {
  await service.run(stop.signal);
  console.log("returned");
} catch (error) {
  console.log(describeError(error));
  process.exitCode = 1;
}
await control.stop(true);
