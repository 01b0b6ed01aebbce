/**
 * Lets only so many bytes of large messages be on their way at once.
 *
 * gRPC frames a message by copying it, and takes up to 16 messages of a stream from us before one of them has left. When
 * a whole cluster starts and everybody asks for the picture of everybody, all those copies would lie in memory: 3 GB for
 * 5,000 nodes. So a large message waits for its turn, in order, and the first nodes have their picture long before
 * the last. A small message, such as a change, waits for nothing but the messages of its own stream before it.
 *
 * A reader that does not read holds its place for a while and is then no longer counted: it must not keep others waiting.
 */
import {
  ServerInterceptingCall,
  ServerListenerBuilder,
  ResponderBuilder,
  type ServerInterceptor,
} from "@grpc/grpc-js";

/** A message up to this size is small. */
const smallBytes = 64 * 1024;
/** Of large messages on their way; one that is larger goes alone. A connection at full speed needs far less. */
const defaultBudgetBytes = 32 * 1024 * 1024;
/** Longest time that a message on its way is counted. */
const defaultPatienceMs = 5_000;

export interface PaceSettings {
  readonly budgetBytes?: number;
  readonly patienceMs?: number;
}

/** For the option `interceptors` of a server whose responses are bytes. */
export function paceLargeMessages(settings: PaceSettings = {}): ServerInterceptor {
  const gate = new Gate(settings.budgetBytes ?? defaultBudgetBytes, settings.patienceMs ?? defaultPatienceMs);
  return (_method, call) => new PacedCall(call, gate);
}

class PacedCall extends ServerInterceptingCall {
  readonly #gate: Gate;
  readonly #passes: Set<Pass>;

  constructor(call: ConstructorParameters<typeof ServerInterceptingCall>[0], gate: Gate) {
    const passes = new Set<Pass>();
    // A call that was cancelled tells nobody what became of its messages.
    const onCancel = (): void => {
      for (const pass of passes) gate.leave(pass);
    };
    const listener = new ServerListenerBuilder().withOnCancel(onCancel).build();
    super(call, new ResponderBuilder().withStart((next) => next(listener)).build());
    this.#gate = gate;
    this.#passes = passes;
  }

  override sendMessage(message: unknown, callback: () => void): void {
    if (!(message instanceof Uint8Array) || message.length <= smallBytes) {
      super.sendMessage(message, callback);
      return;
    }
    const pass = this.#gate.enter(message.length, () =>
      super.sendMessage(message, () => {
        this.#passes.delete(pass);
        this.#gate.leave(pass);
        callback();
      }),
    );
    this.#passes.add(pass);
  }
}

/** A message that waits or is on its way. */
interface Pass {
  readonly bytes: number;
  readonly go: () => void;
  state: "waiting" | "under-way" | "over";
  timer?: ReturnType<typeof setTimeout>;
}

class Gate {
  readonly #budgetBytes: number;
  readonly #patienceMs: number;
  readonly #waiting = new Set<Pass>();
  #underWayBytes = 0;

  constructor(budgetBytes: number, patienceMs: number) {
    this.#budgetBytes = budgetBytes;
    this.#patienceMs = patienceMs;
  }

  /** Calls `go` in its turn: at once while there is room, but never before this returns. */
  enter(bytes: number, go: () => void): Pass {
    const pass: Pass = { bytes, go, state: "waiting" };
    this.#waiting.add(pass);
    queueMicrotask(() => this.#admit());
    return pass;
  }

  /** The message has left, or never will. */
  leave(pass: Pass): void {
    clearTimeout(pass.timer);
    this.#waiting.delete(pass);
    if (pass.state === "under-way") this.#underWayBytes -= pass.bytes;
    pass.state = "over";
    this.#admit();
  }

  #admit(): void {
    for (const pass of this.#waiting) {
      const room = this.#budgetBytes - this.#underWayBytes;
      if (pass.bytes > room && this.#underWayBytes > 0) return;
      this.#waiting.delete(pass);
      this.#underWayBytes += pass.bytes;
      pass.state = "under-way";
      pass.timer = setTimeout(() => this.leave(pass), this.#patienceMs);
      pass.go();
    }
  }
}
