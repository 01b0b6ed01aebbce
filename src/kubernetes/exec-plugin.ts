/**
 * Runs the program that a kubeconfig names for credentials (client.authentication.k8s.io/v1 and v1beta1).
 *
 * As kubectl runs it: this program's environment and what the kubeconfig adds, its request in KUBERNETES_EXEC_INFO, its
 * answer on standard output. Unlike there nobody sits at a terminal, so it is told that it may not ask, and gets a time
 * limit. It runs in a process group of its own, of which nothing is left when it is late; one that has ended well may
 * leave something running, whose hold on its pipes is not waited for. What it gives is secret and in no message; what
 * it says on stderr is shown only without what could be a secret.
 */
import type { ReadableStreamDefaultReader } from "node:stream/web";
import * as v from "valibot";
import { aborted, type Clock } from "../async.ts";
import { escapeUnsafe } from "../core/printable.ts";
import { quote } from "../core/problem.ts";
import { ClusternetError, messageOf, SettingsError } from "../errors.ts";
import { endProcess, findProgram } from "../host/command.ts";
import { isToken, type ExecPlugin } from "./kubeconfig.ts";

/** What a plugin gave. A client certificate and its key come together. */
export interface PluginCredentials {
  readonly token?: string;
  readonly certificate?: { readonly certificate: string; readonly key: string };
  /** Absent: until the API refuses them. */
  readonly expiresAt?: Date;
}

/** The cluster as a plugin is told of it (`spec.cluster`). */
export type PluginCluster = Readonly<Record<string, unknown>>;

export interface PluginOptions {
  /** For `provideClusterInfo`. */
  readonly cluster: PluginCluster;
  readonly environment: Readonly<Record<string, string | undefined>>;
  readonly clock: Pick<Clock, "sleep">;
  readonly timeoutMs?: number;
}

/** A plugin may talk to a cloud, over a slow line; longer than this it hangs. */
const pluginTimeoutMs = 30_000;
/** What it has written is read within this time of its end, also when something that it has started holds its pipes. */
const pipeGraceMs = 1_000;
/** A token and a certificate chain have some ten thousand characters. */
const maxAnswerCharacters = 1024 * 1024;
const shownStderrCharacters = 300;

const answerSchema = v.object({
  kind: v.literal("ExecCredential"),
  apiVersion: v.string(),
  status: v.object({
    token: v.nullish(v.string()),
    clientCertificateData: v.nullish(v.string()),
    clientKeyData: v.nullish(v.string()),
    expirationTimestamp: v.nullish(v.pipe(v.string(), v.isoTimestamp())),
  }),
});

/** Where the plugin is. Throws SettingsError with its maker's hint when it is not there. */
export function findPlugin({ command, installHint }: ExecPlugin, path: string | undefined): string {
  const found = findProgram(command, path);
  if (found !== undefined) return found;
  throw new SettingsError(`Cannot run exec plugin ${quote(command)} of the kubeconfig: no such program`, {
    hint: installHint === undefined ? "Install it, or set PATH" : inLine(installHint),
  });
}

/** Asks the plugin for credentials. Throws ClusternetError; ends the plugin when `signal` aborts. */
export async function runPlugin(
  plugin: ExecPlugin,
  { cluster, environment, clock, timeoutMs = pluginTimeoutMs }: PluginOptions,
  signal: AbortSignal,
): Promise<PluginCredentials> {
  const hint = plugin.installHint === undefined ? {} : { hint: inLine(plugin.installHint) };
  const fail = (reason: string): ClusternetError =>
    new ClusternetError(`Cannot get credentials from exec plugin ${quote(plugin.command)}: ${reason}`, hint);
  const program = findPlugin(plugin, environment["PATH"]);
  const request = {
    kind: "ExecCredential",
    apiVersion: plugin.apiVersion,
    spec: { interactive: false, ...(plugin.clusterInfo === undefined ? {} : { cluster }) },
  };
  const env = { ...environment, ...plugin.env, KUBERNETES_EXEC_INFO: JSON.stringify(request) };
  let child;
  try {
    child = Bun.spawn([program, ...plugin.args], {
      cwd: "/",
      env,
      stdin: "ignore",
      stdout: "pipe",
      stderr: "pipe",
      detached: true,
    });
  } catch (error) {
    throw fail(messageOf(error));
  }
  const stdout = new Reading(child.stdout);
  const stderr = new Reading(child.stderr);
  const late = new AbortController();
  const done = new AbortController();
  const end = AbortSignal.any([signal, late.signal]);
  // Everything the plugin has started ends with it, and so its pipes do.
  const stop = (): void => endProcess(-child.pid);
  end.addEventListener("abort", stop, { once: true });
  if (end.aborted) stop();
  void clock.sleep(timeoutMs, done.signal).then(() => (done.signal.aborted ? undefined : late.abort()));
  try {
    const exitCode = await Promise.race([child.exited, aborted(end)]);
    // From here on its process ID can be another's.
    end.removeEventListener("abort", stop);
    if (signal.aborted) throw fail("it was ended, since this program stops");
    if (exitCode === undefined) throw fail(`still running after ${timeoutMs / 1000} s, so it was ended`);
    await Promise.race([
      Promise.all([stdout.ended, stderr.ended]),
      clock.sleep(pipeGraceMs, AbortSignal.any([done.signal, signal])),
    ]);
    if (exitCode !== 0) {
      const words = shownWords(stderr);
      throw fail(`exit code ${exitCode}${words === "" ? "" : `: ${words}`}`);
    }
    if (stdout.isCut) throw fail(`it wrote more than ${maxAnswerCharacters} characters`);
    return decodeAnswer(stdout.text, plugin, fail);
  } finally {
    done.abort();
    stdout.close();
    stderr.close();
  }
}

function decodeAnswer(
  stdout: string,
  { apiVersion }: ExecPlugin,
  fail: (reason: string) => ClusternetError,
): PluginCredentials {
  let json: unknown;
  try {
    json = JSON.parse(stdout);
  } catch {
    // The parser's error is left out on purpose: it may quote what it read.
    throw fail("what it wrote is not JSON, expected an ExecCredential");
  }
  const result = v.safeParse(answerSchema, json, { abortEarly: true });
  if (!result.success) {
    const field = v.getDotPath(result.issues[0]) ?? "";
    throw fail(`field ${quote(field)} of its answer is missing or wrong, expected an ExecCredential`);
  }
  const { apiVersion: found, status } = result.output;
  if (found !== apiVersion) {
    throw fail(`it answered with apiVersion ${quote(found)}, expected ${apiVersion} as the kubeconfig says`);
  }
  const token = status.token ?? "";
  const certificate = status.clientCertificateData ?? "";
  const key = status.clientKeyData ?? "";
  if (token === "" && certificate === "")
    throw fail("its answer has neither a token nor a client certificate");
  if ((certificate === "") !== (key === "")) {
    throw fail("its answer has a client certificate or a key, expected both");
  }
  if (token !== "" && !isToken(token)) throw fail("its token is not printable ASCII without spaces");
  const expires = status.expirationTimestamp;
  return {
    ...(token === "" ? {} : { token }),
    ...(certificate === "" ? {} : { certificate: { certificate, key } }),
    ...(expires === undefined || expires === null ? {} : { expiresAt: new Date(expires) }),
  };
}

/** One line, safe for a terminal. */
function inLine(text: string): string {
  return escapeUnsafe(text.replace(/\s+/g, " ").trim());
}

/** The end of what a plugin says, where the reason stands. Redacted before it is cut: half a token is none to look at. */
function shownWords({ text, isCut }: Pick<Reading, "text" | "isCut">): string {
  // Nothing tells what the rest of a word that was cut would have been.
  const whole = isCut ? text.replace(/\S*$/, "") : text;
  const line = redactSecrets(whole).replace(/\s+/g, " ").trim();
  return escapeUnsafe(line.length > shownStderrCharacters ? `…${line.slice(-shownStderrCharacters)}` : line);
}

/** A path as people write them: what is no secret piece by piece is none as a whole. */
const path = /^(?:\/[a-z0-9._-]{1,15})+\/?$/;

/**
 * Text with everything that could be a secret replaced: PEM blocks, words of 16 characters and more with a digit among
 * them or a long run of what base64 is made of, bootstrap tokens. Words and paths stay, so that the reason can be read.
 */
function redactSecrets(text: string): string {
  return text
    .replace(/-----BEGIN[^]*?(?:-----END[^-]*-----|$)/g, "[redacted]")
    .replace(/[^\s"'`(){}[\]<>,;:|]{16,}/g, (word) =>
      path.test(word) || !/[0-9]|[A-Za-z0-9+/_=-]{33}/.test(word) ? word : "[redacted]",
    )
    .replace(/\b[a-z0-9]{6}\.[a-z0-9]{16}\b/g, "[redacted]");
}

/** What comes through a pipe. The rest is read and forgotten, so that whoever writes too much is not kept waiting. */
class Reading {
  /** Resolves when nobody holds the other end any more. */
  readonly ended: Promise<void>;
  readonly #reader: ReadableStreamDefaultReader<Uint8Array>;
  #text = "";

  constructor(stream: ReadableStream<Uint8Array>) {
    this.#reader = stream.getReader();
    this.ended = this.#read();
  }

  /** What came so far, no longer than an answer may be. */
  get text(): string {
    return this.#text;
  }

  get isCut(): boolean {
    return this.#text.length === maxAnswerCharacters;
  }

  /** Lets go of the pipe, also when something that lives on holds its other end. */
  close(): void {
    // A pipe that broke has let go of itself.
    void this.#reader.cancel().catch(() => {});
  }

  async #read(): Promise<void> {
    const decoder = new TextDecoder();
    try {
      for (let piece = await this.#reader.read(); !piece.done; piece = await this.#reader.read()) {
        const room = maxAnswerCharacters - this.#text.length;
        if (room > 0) this.#text += decoder.decode(piece.value, { stream: true }).slice(0, room);
      }
    } catch {
      // A pipe that breaks has ended; what is missing of an answer is told by whoever reads that.
    }
  }
}
