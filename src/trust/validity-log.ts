/**
 * Tells in the log when the own certificate has expired, is not valid yet, or ends soon: once each, as often as it is
 * looked at.
 *
 * It is no reason to end, and no problem of the mesh: the clock may be what is wrong, and what others refuse for it is
 * reported where they refuse it. But a Curator hears of no refusal, since it is its callers that do not trust it.
 */
import type { X509Certificate } from "node:crypto";
import type { Clock } from "../async.ts";
import { quotePath } from "../core/problem.ts";
import type { Logger } from "../log.ts";
import { timeProblem } from "./certificate.ts";

/** So long before its end it is told that a certificate ends. */
const soonMs = 30 * 24 * 3_600_000;

export interface ValidityParts {
  readonly log: Logger;
  readonly clock: Pick<Clock, "wallTime">;
}

export class ValidityLog {
  readonly #path: string;
  readonly #parts: ValidityParts;
  #said: string | undefined;

  /** `path`: where the certificate is. */
  constructor(path: string, parts: ValidityParts) {
    this.#path = path;
    this.#parts = parts;
  }

  /** The certificate as it is there now. */
  look(certificate: X509Certificate): void {
    const { log, clock } = this.#parts;
    const found = remarkOn(certificate, clock.wallTime());
    if (found !== undefined && found !== this.#said) {
      log.warn(`Node certificate ${quotePath(this.#path)} ${found}`);
    }
    this.#said = found;
  }
}

function remarkOn(certificate: X509Certificate, now: Date): string | undefined {
  const problem = timeProblem(certificate, now);
  if (problem !== undefined) {
    return `${problem} by the clock of this machine: others refuse it; renew it (\`clusternet pki issue\` makes one), or set the clock`;
  }
  if (Date.parse(certificate.validTo) - now.getTime() > soonMs) return undefined;
  return `expires on ${certificate.validTo}: put another one in its place before (\`clusternet pki issue\` makes one); it is taken without a restart`;
}
