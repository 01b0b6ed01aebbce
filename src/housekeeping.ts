/**
 * Keeps what a running agent needs in its data directory: the directory itself, the key file, the state file and the
 * status socket. What vanished is made again, what could not be written is tried again, with backoff and from the moment
 * on in which somebody could not write the state file; neither holds anything else up.
 * Looks also at the key of the credentials and at the directories, which are not ours to change: open to others they
 * are a problem while it lasts. Of the certificate the log tells when it is not valid, or not for long.
 */
import { join } from "node:path";
import { applyBackoff, Backoff, type Clock } from "./async.ts";
import type { PrivateKey } from "./core/key.ts";
import { describeInLine } from "./errors.ts";
import { openDirectoryProblems } from "./host/directory-mode.ts";
import { ensurePrivateDirectory, socketPath } from "./host/files.ts";
import { keyFileName, rewriteKeyFile } from "./host/key-file.ts";
import type { Locks } from "./host/lock.ts";
import type { PrivateServer } from "./host/private-socket.ts";
import type { AgentMemory } from "./host/state-file.ts";
import type { Logger } from "./log.ts";
import type { ProblemLog } from "./problem-log.ts";
import { serveStatus, type StatusHandlers } from "./status-socket.ts";
import { pathsOf, type CredentialFiles } from "./trust/credential-files.ts";
import { openKeyProblems, readCertificate } from "./trust/credentials.ts";
import { ValidityLog } from "./trust/validity-log.ts";

/** It looks at least this often: whoever asks for the health takes a loop that has not turned for a minute for hung. */
const longestRestMs = 30_000;

export interface HousekeepingSettings {
  readonly dataDirectory: string;
  readonly interfaceName: string;
  readonly key: PrivateKey;
  /** None without TLS. */
  readonly credentials: CredentialFiles | undefined;
  /** How often it looks, but for `longestRestMs`. */
  readonly resyncMs: number;
}

export interface HousekeepingParts {
  readonly locks: Locks;
  readonly memory: AgentMemory;
  readonly handlers: StatusHandlers;
  readonly problems: ProblemLog;
  readonly log: Logger;
  readonly clock: Clock;
}

export class Housekeeping {
  readonly #settings: HousekeepingSettings;
  readonly #parts: HousekeepingParts;
  /** None without TLS. */
  readonly #validity: ValidityLog | undefined;
  #server: PrivateServer | undefined;
  #lastTurnMs = 0;
  #hasTurned = false;

  constructor(settings: HousekeepingSettings, parts: HousekeepingParts) {
    this.#settings = settings;
    this.#parts = parts;
    const { credentials } = settings;
    this.#validity = credentials === undefined ? undefined : new ValidityLog(credentials.cert, parts);
  }

  /** When the loop last turned, by the clock's `nowMs`. */
  get lastTurnMs(): number {
    return this.#lastTurnMs;
  }

  /** All of it was looked at once: what cannot be made or written is among the problems. */
  get hasTurned(): boolean {
    return this.#hasTurned;
  }

  /** Serves the status until `signal` aborts. Never throws: what cannot be done is reported and tried again. */
  async run(signal: AbortSignal): Promise<void> {
    const { clock, memory } = this.#parts;
    const everyMs = Math.min(this.#settings.resyncMs, longestRestMs);
    const backoff = new Backoff(applyBackoff, clock);
    try {
      while (!signal.aborted) {
        this.#lastTurnMs = clock.nowMs();
        const isWhole = await this.#turn();
        this.#hasTurned = true;
        if (isWhole) backoff.reset();
        const restMs = isWhole ? everyMs : Math.min(everyMs, backoff.next());
        await memory.unwritten.wait(restMs, signal, clock);
      }
    } finally {
      await this.#server?.stop();
    }
  }

  /** False: something could not be made or written. */
  async #turn(): Promise<boolean> {
    const { dataDirectory, interfaceName, key, credentials } = this.#settings;
    const { locks, memory, handlers, problems, log } = this.#parts;
    const tasks: readonly (() => Promise<void>)[] = [
      async () => {
        await ensurePrivateDirectory(dataDirectory);
        locks.renew();
      },
      async () => {
        if (await rewriteKeyFile(join(dataDirectory, keyFileName), key)) {
          log.warn("The private key file was gone: the same key was written back", { dataDirectory });
        }
      },
      async () => {
        if (this.#server === undefined)
          this.#server = serveStatus(socketPath(dataDirectory, interfaceName), handlers);
        else await this.#server.ensure();
      },
      async () => await memory.keep(),
    ];
    const failures: string[] = [];
    for (const task of tasks) {
      try {
        await task();
      } catch (error) {
        failures.push(describeInLine(error));
      }
    }
    const keyProblems = credentials === undefined ? [] : await openKeyProblems(credentials.key);
    const directoryProblems = await openDirectoryProblems([dataDirectory], pathsOf(credentials));
    problems.replace("open-to-others", [...keyProblems, ...directoryProblems]);
    await this.#lookAtCertificate();
    problems.replace(
      "data-directory",
      failures.map((message) => ({ kind: "file-unwritable", message })),
    );
    return failures.length === 0;
  }

  async #lookAtCertificate(): Promise<void> {
    const { credentials } = this.#settings;
    if (credentials === undefined) return;
    // Whoever connects with it tells why it cannot be used.
    const found = await readCertificate("node certificate", credentials.cert).catch(() => undefined);
    if (found !== undefined) this.#validity?.look(found);
  }
}
