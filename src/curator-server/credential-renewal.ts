/**
 * Credentials of a running Curator, read again now and then, so that they can be replaced without a restart.
 *
 * Connections that are there stay. Files that cannot be used (half copied, or of another cluster) are reported and
 * change nothing: the credentials that were good are kept until others are. A key that others may read is reported too, and
 * a certificate that is not valid, or not for long.
 */
import type { Clock } from "../async.ts";
import { quote, type Problem } from "../core/problem.ts";
import { ClusternetError, describeInLine } from "../errors.ts";
import type { RedactingLogger } from "../log.ts";
import { ProblemLog } from "../problem-log.ts";
import type { CredentialFiles } from "../trust/credential-files.ts";
import { openKeyProblems, readCredentials, redactKey, type Credentials } from "../trust/credentials.ts";
import { ValidityLog } from "../trust/validity-log.ts";
import type { TlsTransport } from "./tls.ts";

export interface RenewalParts {
  readonly transport: TlsTransport;
  readonly log: RedactingLogger;
  readonly clock: Clock;
}

export class CredentialRenewal {
  readonly #files: CredentialFiles;
  readonly #parts: RenewalParts;
  readonly #problems: ProblemLog;
  readonly #validity: ValidityLog;
  #own: Credentials;

  /** `own`: what `transport` was made of. */
  constructor(files: CredentialFiles, own: Credentials, parts: RenewalParts) {
    this.#files = files;
    this.#own = own;
    this.#parts = parts;
    this.#problems = new ProblemLog(parts.log, parts.clock);
    this.#validity = new ValidityLog(files.cert, parts);
  }

  /** Reads the files and hands on what is new. Never throws: what is wrong is logged when it begins and when it ends. */
  async look(): Promise<void> {
    const { transport, log } = this.#parts;
    const problems: Problem[] = [...(await openKeyProblems(this.#files.key))];
    try {
      const next = await this.#read();
      if (!isSame(next, this.#own)) {
        redactKey(next, log);
        transport.renew(next);
        this.#own = next;
        log.info("Credentials were replaced: new connections get the new ones", {
          certificate: this.#files.cert,
        });
      }
    } catch (error) {
      problems.push({
        kind: "source-failed",
        message: `Cannot take other credentials, going on with those read before: ${describeInLine(error)}`,
      });
    }
    this.#problems.replace("credentials", problems);
    this.#validity.look(this.#own.certificate);
  }

  async #read(): Promise<Credentials> {
    const next = await readCredentials(this.#files);
    if (next.nodeId === this.#own.nodeId) return next;
    throw new ClusternetError(
      `Cannot use node certificate ${quote(this.#files.cert)}: it now names node ${quote(next.nodeId)}, expected ${quote(this.#own.nodeId)}`,
      { hint: "Start the program again to be another node" },
    );
  }
}

/** The key belongs to the certificate, so it need not be compared. */
function isSame(a: Credentials, b: Credentials): boolean {
  return a.ca.raw.equals(b.ca.raw) && a.certificate.raw.equals(b.certificate.raw);
}
