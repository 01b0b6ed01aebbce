/**
 * Which large messages are on their way at once: the interceptor before calls that write down what reaches them.
 */
import { describe, expect, test } from "bun:test";
import type { ServerInterceptingCall } from "@grpc/grpc-js";
import { paceLargeMessages } from "../../src/curator-server/pace.ts";
import { waitFor } from "../lab/wait.ts";

const large = 100 * 1024;

/** Calls of one server, "a" and "b" and so on, and what has been handed to the network. */
class Calls {
  /** `a1`: the first message of call "a". */
  readonly sent: string[] = [];
  /** Calls back that a message has left. */
  readonly #left = new Map<string, () => void>();
  readonly #cancel = new Map<string, () => void>();
  readonly #calls = new Map<string, ServerInterceptingCall>();
  readonly #counts = new Map<string, number>();
  readonly #interceptor: ReturnType<typeof paceLargeMessages>;

  constructor(settings: Parameters<typeof paceLargeMessages>[0]) {
    this.#interceptor = paceLargeMessages(settings);
  }

  send(name: string, bytes: number): void {
    const number = (this.#counts.get(name) ?? 0) + 1;
    this.#counts.set(name, number);
    this.#call(name).sendMessage(new Uint8Array(bytes), () => {});
  }

  /** The network has taken it. */
  leave(message: string): void {
    this.#left.get(message)?.();
  }

  cancel(name: string): void {
    this.#cancel.get(name)?.();
  }

  #call(name: string): ServerInterceptingCall {
    const known = this.#calls.get(name);
    if (known !== undefined) return known;
    let number = 0;
    const network = {
      start: (listener: { onCancel(): void }) => this.#cancel.set(name, () => listener.onCancel()),
      sendMetadata: () => {},
      sendMessage: (_message: unknown, left: () => void) => {
        const message = `${name}${++number}`;
        this.sent.push(message);
        this.#left.set(message, left);
      },
    };
    const definition = { path: "/x", requestStream: false, responseStream: true } as never;
    const call = this.#interceptor(definition, network as never);
    call.start({ onReceiveMetadata() {}, onReceiveMessage() {}, onReceiveHalfClose() {}, onCancel() {} });
    this.#calls.set(name, call);
    return call;
  }
}

const settled = async (calls: Calls): Promise<readonly string[]> => {
  await Promise.resolve();
  return calls.sent;
};

describe("paceLargeMessages()", () => {
  test("lets through what fits, and the others in their order as room is made", async () => {
    const calls = new Calls({ budgetBytes: 2 * large });
    for (const name of ["a", "b", "c", "d"]) calls.send(name, large);
    expect(await settled(calls)).toEqual(["a1", "b1"]);
    calls.leave("b1");
    expect(await settled(calls)).toEqual(["a1", "b1", "c1"]);
    calls.leave("a1");
    calls.leave("c1");
    expect(await settled(calls)).toEqual(["a1", "b1", "c1", "d1"]);
  });

  test("lets a message that is larger than all of the room go alone", async () => {
    const calls = new Calls({ budgetBytes: large });
    calls.send("a", 3 * large);
    calls.send("b", large);
    expect(await settled(calls)).toEqual(["a1"]);
    calls.leave("a1");
    expect(await settled(calls)).toEqual(["a1", "b1"]);
  });

  test("makes no small message wait", async () => {
    const calls = new Calls({ budgetBytes: large });
    calls.send("a", large);
    calls.send("b", large);
    calls.send("c", 1_000);
    expect(await settled(calls)).toEqual(["c1", "a1"]);
  });

  test("gives the room of a call that was cancelled to the next, and forgets one that waits", async () => {
    const calls = new Calls({ budgetBytes: large });
    for (const name of ["a", "b", "c"]) calls.send(name, large);
    await settled(calls);
    calls.cancel("b");
    calls.cancel("a");
    expect(await settled(calls)).toEqual(["a1", "c1"]);
    // What comes late changes nothing.
    calls.leave("a1");
    calls.send("d", large);
    expect(await settled(calls)).toEqual(["a1", "c1"]);
    calls.leave("c1");
    expect(await settled(calls)).toEqual(["a1", "c1", "d1"]);
  });

  test("does not let a reader that does not read keep the others waiting", async () => {
    const calls = new Calls({ budgetBytes: large, patienceMs: 20 });
    calls.send("a", large);
    calls.send("b", large);
    expect(await settled(calls)).toEqual(["a1"]);
    await waitFor(() => calls.sent.length === 2, "the second message");
    expect(calls.sent).toEqual(["a1", "b1"]);
  });
});
