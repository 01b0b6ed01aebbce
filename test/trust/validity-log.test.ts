/** What is logged of the own certificate as time goes by: each thing once. */
import { expect, test } from "bun:test";
import { silentLogger } from "../../src/log.ts";
import { makeClusterCa } from "../../src/trust/make-certificate.ts";
import { ValidityLog } from "../../src/trust/validity-log.ts";
import { FakeClock } from "../fakes/clock.ts";
import { certificateOf } from "./cluster.ts";

const ca = makeClusterCa(new Date("2026-01-01T00:00:00Z"));
const { certificate } = certificateOf("a", ca, {
  notBefore: new Date("2026-02-01T00:00:00Z"),
  notAfter: new Date("2026-05-01T00:00:00Z"),
});
const renewed = certificateOf("a", ca, { notAfter: new Date("2027-05-01T00:00:00Z") }).certificate;
const dayMs = 24 * 3_600_000;

test("ValidityLog tells once that a certificate is not valid yet, that it ends within 30 days, and that it has", () => {
  const lines: string[] = [];
  const clock = new FakeClock(new Date("2026-01-01T00:00:00Z"));
  const log = { ...silentLogger, warn: (message: string) => void lines.push(message) };
  const validity = new ValidityLog("/c/cert.pem", { log, clock });
  const days: Record<string, readonly string[]> = {};
  const lookDaily = (looked: typeof certificate, count: number): void => {
    for (let day = 0; day < count; day++) {
      validity.look(looked);
      if (lines.length > 0) days[clock.wallTime().toISOString().slice(0, 10)] = lines.splice(0);
      clock.setTimeOfDay(dayMs);
    }
  };
  lookDaily(certificate, 150);
  lookDaily(renewed, 90);
  const refused =
    "by the clock of this machine: others refuse it; renew it (`clusternet pki issue` makes one), or set the clock";
  expect(days).toEqual({
    "2026-01-01": [`Node certificate "/c/cert.pem" is not valid before Feb  1 00:00:00 2026 GMT ${refused}`],
    "2026-04-01": [
      'Node certificate "/c/cert.pem" expires on May  1 00:00:00 2026 GMT: put another one in its place before ' +
        "(`clusternet pki issue` makes one); it is taken without a restart",
    ],
    "2026-05-02": [`Node certificate "/c/cert.pem" expired on May  1 00:00:00 2026 GMT ${refused}`],
  });
});
