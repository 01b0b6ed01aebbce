/**
 * A running ping that accounts for every packet.
 *
 * WireGuard queues packets while it handshakes, so a cut in the mesh can show as replies that are late
 * rather than missing: a reply later than `lateMs` therefore counts as lost. Sequence numbers are compared
 * with the number of packets that ping says it sent; the packets in flight at `stop` are waited for.
 *
 * What is late is said by the times that ping and the kernel put on the packets, never by this process, which may
 * stand still on a busy machine.
 */
import { readFileSync } from "node:fs";
import type { LabProcess, Line } from "./process.ts";
import { waitFor } from "./wait.ts";

export interface PingOptions {
  /** Packets a second. Default 200. */
  readonly rate?: number;
  /** A reply that takes longer is lost. Default 500. */
  readonly lateMs?: number;
  /** Source address. Default: the kernel's choice. */
  readonly source?: string;
}

export interface PingResult {
  readonly sent: number;
  /** Replies that came in time. */
  readonly received: number;
  /** Packets without a reply in time: those that `late` counts, too. */
  readonly lost: number;
  /** Replies that came, but later than the limit. */
  readonly late: number;
  /** Round trip of the slowest reply, in time or not. */
  readonly maxMs: number;
  /** Which of the first lost packets: the nth of its process (see `maxRate`). */
  readonly lostNumbers: readonly number[];
  /** What ping says besides the replies: ICMP errors, and what it wrote on standard error. */
  readonly complaints: readonly string[];
}

/** Starts a program in the namespace that pings, and hands every line of it to `onLine`. */
export type StartPing = (argv: readonly string[], onLine: (line: Line) => void) => LabProcess;

/** How many lost packets a result names. */
const namedLosses = 20;

/**
 * How much longer than the late limit `stop` waits for any packet at all: a mesh that is cut gives none, one on a
 * machine that stood still does.
 */
const silentLimitMs = 2_000;

/** How long ping may take to print its count after it was asked. */
const countLimitMs = 5_000;

/**
 * Packets a second of one process: iputils' ping (20221126) waits for its next packet in a busy loop when that
 * is 10 ms away or less, and takes half a processor from what is tested. A faster ping is several processes.
 */
const maxRate = 50;

/**
 * Ping's own send buffer holds six packets. One that waits for room there when it is asked for its count (a signal)
 * is not sent, yet counted as sent without a word, as for every failure to send.
 */
const sendBufferBytes = 262_144;

export class Ping {
  readonly #lateMs: number;
  readonly #streams: readonly Stream[];

  constructor(target: string, options: PingOptions, start: StartPing) {
    this.#lateMs = options.lateMs ?? 500;
    const rate = options.rate ?? 200;
    const count = Math.ceil(rate / maxRate);
    const source = options.source === undefined ? [] : ["-I", options.source];
    const intervalSeconds = count / rate;
    // Each process has a raw socket and gets the replies to all: with one identifier (ping takes a random one of 16
    // bits) two of them would take the other's replies for their own, which hides losses.
    const [first = 0] = crypto.getRandomValues(new Uint16Array(1));
    // Their packets take turns, so that no gap is longer than the rate says.
    this.#streams = Array.from({ length: count }, (_, index) => {
      const identifier = 1 + ((first + index) % 65_535);
      const numbers = { "-e": identifier, "-i": intervalSeconds, "-S": sendBufferBytes };
      const argv = ["ping", "-n", ...Object.entries(numbers).flatMap(([flag, n]) => [flag, String(n)])];
      argv.push(...source, target);
      return new Stream({ argv, delaySeconds: index / rate, intervalMs: intervalSeconds * 1_000 }, start);
    });
  }

  /** Waits until that many packets were sent since the start. */
  async sent(count: number, limitMs: number): Promise<void> {
    await waitFor(async () => (await this.#count()) >= count, {
      limitMs,
      what: `${count} pings to be sent`,
      everyMs: 100,
    });
  }

  /** Ends the ping, after waiting for the replies to what was sent before the call, late ones too. */
  async stop(): Promise<PingResult> {
    const outcomes = await Promise.all(this.#streams.map((stream) => stream.stop(this.#lateMs)));
    const sum = (of: (outcome: Outcome) => number): number =>
      outcomes.reduce((total, outcome) => total + of(outcome), 0);
    const lost = sum(({ lostNumbers }) => lostNumbers.length);
    const sent = sum((outcome) => outcome.sent);
    return {
      sent,
      received: sent - lost,
      lost,
      late: sum(({ late }) => late),
      maxMs: outcomes.reduce((max, outcome) => Math.max(max, outcome.maxMs), 0),
      lostNumbers: outcomes
        .flatMap(({ lostNumbers }) => lostNumbers)
        .toSorted((a, b) => a - b)
        .slice(0, namedLosses),
      complaints: outcomes.flatMap(({ complaints }) => complaints),
    };
  }

  async #count(): Promise<number> {
    const counts = await Promise.all(this.#streams.map((stream) => stream.count()));
    return counts.reduce((total, count) => total + count, 0);
  }
}

interface Outcome {
  readonly sent: number;
  readonly late: number;
  readonly maxMs: number;
  readonly lostNumbers: readonly number[];
  readonly complaints: readonly string[];
}

/** One process of ping. */
class Stream {
  readonly #process: LabProcess;
  /** Round trip in ms by sequence number. */
  readonly #replies = new Map<number, number>();
  readonly #intervalMs: number;
  readonly #complaints: string[] = [];
  #highest = 0;
  #sent = 0;
  #counts = 0;

  constructor(
    {
      argv,
      delaySeconds,
      intervalMs,
    }: { readonly argv: readonly string[]; readonly delaySeconds: number; readonly intervalMs: number },
    start: StartPing,
  ) {
    this.#intervalMs = intervalMs;
    const later = ["sh", "-c", 'sleep "$0"; exec "$@"', String(delaySeconds)];
    this.#process = start([...later, ...argv], (line) => this.#take(line));
  }

  /** Asks ping (SIGQUIT) how many packets it has sent. Fails when it has ended. */
  async count(): Promise<number> {
    const wait = { limitMs: countLimitMs, everyMs: 2 };
    await waitFor(() => this.#process.exit !== undefined || catchesQuit(this.#process.pid), {
      ...wait,
      what: "ping to start",
    });
    const before = this.#counts;
    this.#process.kill("SIGQUIT");
    await waitFor(() => this.#process.exit !== undefined || this.#counts > before, {
      ...wait,
      what: "ping to count its packets",
    });
    if (this.#counts === before) throw new Error(this.#process.describe());
    return this.#sent;
  }

  async stop(lateMs: number): Promise<Outcome> {
    const sent = await this.count();
    // When the reply to a packet that was sent so much later is there, what is still missing is lost, or late.
    const tooLate = sent + Math.ceil(lateMs / this.#intervalMs) + 1;
    try {
      await waitFor(() => this.#highest >= tooLate || this.#missing(sent).length === 0, {
        limitMs: lateMs + silentLimitMs,
        what: "stragglers",
      });
    } catch {
      // What has not come by now is lost, and counted as such below.
    }
    this.#process.kill("SIGINT");
    await this.#process.exited;
    const times = [...this.#replies].filter(([number]) => number <= sent);
    const late = times.filter(([, ms]) => ms > lateMs);
    return {
      sent,
      late: late.length,
      maxMs: times.reduce((max, [, ms]) => Math.max(max, ms), 0),
      lostNumbers: [...this.#missing(sent), ...late.map(([number]) => number)],
      complaints: this.#complaints,
    };
  }

  #missing(sent: number): number[] {
    const numbers: number[] = [];
    for (let number = 1; number <= sent; number++) if (!this.#replies.has(number)) numbers.push(number);
    return numbers;
  }

  #take({ stream, text }: Line): void {
    if (stream === "stdout") {
      if (text.startsWith("From ")) this.#complaints.push(text);
      const [, number, ms] = /icmp_seq=(\d+) .*time=([\d.]+) ms/.exec(text) ?? [];
      if (number === undefined || ms === undefined) return;
      const full = this.#unwrap(Number(number));
      this.#highest = Math.max(this.#highest, full);
      // A duplicate does not make a late reply a timely one.
      if (!this.#replies.has(full)) this.#replies.set(full, Number(ms));
      return;
    }
    const [, sent] = /\d+\/(\d+) packets/.exec(text) ?? [];
    if (sent === undefined) {
      this.#complaints.push(text);
      return;
    }
    this.#sent = Number(sent);
    this.#counts++;
  }

  /** ICMP numbers have 16 bits and start again after 22 minutes at 50 a second: the nearest to the highest is meant. */
  #unwrap(number: number): number {
    return number + 65_536 * Math.round((this.#highest - number) / 65_536);
  }
}

/** Whether a process has a handler for SIGQUIT: before that the signal would end it. */
function catchesQuit(pid: number): boolean {
  const [, caught] = /^SigCgt:\s*([0-9a-f]+)$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
  return caught !== undefined && (BigInt(`0x${caught}`) & 4n) !== 0n;
}
