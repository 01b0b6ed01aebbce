/**
 * A running ping that accounts for every packet.
 *
 * WireGuard queues packets while it handshakes, so a cut in the mesh can show as replies that are late
 * rather than missing: a reply later than `lateMs` therefore counts as lost. Sequence numbers are compared
 * with the number of packets that ping says it sent; the packets in flight at `stop` are waited for.
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
  /** Sequence numbers of the first lost packets. */
  readonly lostNumbers: readonly number[];
}

/** How many lost packets a result names. */
const namedLosses = 20;

/** How long ping may take to print its count after it was asked. */
const countLimitMs = 5_000;

export class Ping {
  readonly #process: LabProcess;
  readonly #lateMs: number;
  /** Round trip in ms by sequence number. */
  readonly #replies = new Map<number, number>();
  #highest = 0;
  #sent = 0;
  #counts = 0;

  /** `start` runs the argv in the namespace that pings and hands every line to `onLine`. */
  constructor(
    target: string,
    options: PingOptions,
    start: (argv: readonly string[], onLine: (line: Line) => void) => LabProcess,
  ) {
    this.#lateMs = options.lateMs ?? 500;
    const argv = ["ping", "-n", "-i", String(1 / (options.rate ?? 200))];
    if (options.source !== undefined) argv.push("-I", options.source);
    this.#process = start([...argv, target], (line) => this.#take(line));
  }

  /** Waits until that many packets were sent since the start. */
  async sent(count: number, limitMs: number): Promise<void> {
    await waitFor(async () => (await this.#count()) >= count, {
      limitMs,
      what: `${count} pings to be sent`,
      everyMs: 100,
    });
  }

  /** Ends the ping, after waiting (at most the late limit) for the replies to what was sent before the call. */
  async stop(): Promise<PingResult> {
    const sent = await this.#count();
    try {
      await waitFor(() => this.#missing(sent).length === 0, { limitMs: this.#lateMs, what: "stragglers" });
    } catch {
      // What has not come by now is lost, and counted as such below.
    }
    this.#process.kill("SIGINT");
    await this.#process.exited;
    const missing = this.#missing(sent);
    const times = [...this.#replies].filter(([number]) => number <= sent);
    const late = times.filter(([, ms]) => ms > this.#lateMs);
    const lostNumbers = [...missing, ...late.map(([number]) => number)].toSorted((a, b) => a - b);
    return {
      sent,
      received: sent - lostNumbers.length,
      lost: lostNumbers.length,
      late: late.length,
      maxMs: times.reduce((max, [, ms]) => Math.max(max, ms), 0),
      lostNumbers: lostNumbers.slice(0, namedLosses),
    };
  }

  /** Asks ping (SIGQUIT) how many packets it has sent. Fails when it has ended. */
  async #count(): Promise<number> {
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

  #missing(sent: number): number[] {
    const numbers: number[] = [];
    for (let number = 1; number <= sent; number++) if (!this.#replies.has(number)) numbers.push(number);
    return numbers;
  }

  #take({ stream, text }: Line): void {
    if (stream === "stdout") {
      const [, number, ms] = /icmp_seq=(\d+) .*time=([\d.]+) ms/.exec(text) ?? [];
      if (number === undefined || ms === undefined) return;
      const full = this.#unwrap(Number(number));
      this.#highest = Math.max(this.#highest, full);
      // A duplicate does not make a late reply a timely one.
      if (!this.#replies.has(full)) this.#replies.set(full, Number(ms));
      return;
    }
    const [, sent] = /\d+\/(\d+) packets/.exec(text) ?? [];
    if (sent === undefined) return;
    this.#sent = Number(sent);
    this.#counts++;
  }

  /** ICMP numbers have 16 bits and start again after 5.5 minutes at 200 a second: the nearest to the highest is meant. */
  #unwrap(number: number): number {
    return number + 65_536 * Math.round((this.#highest - number) / 65_536);
  }
}

/** Whether a process has a handler for SIGQUIT: before that the signal would end it. */
function catchesQuit(pid: number): boolean {
  const [, caught] = /^SigCgt:\s*([0-9a-f]+)$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8")) ?? [];
  return caught !== undefined && (BigInt(`0x${caught}`) & 4n) !== 0n;
}
