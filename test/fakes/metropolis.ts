/**
 * What the Curator of Metropolis answers to an announcement, by its recorded answers (test/fixtures/update-clusternet.json):
 * OK, or one refusal of all of it. Its words are ours, since nobody may rely on its own. What it knows of other nodes
 * (keys that are or were theirs) is left out.
 */
import {
  containsPrefix,
  decodeAddress,
  decodePrefix,
  hostPrefix,
  parsePrefix,
} from "../../src/core/prefix.ts";
import type { Refusal } from "./curator.ts";

/** The network of its pods: no setting, whatever the agents are given. */
const clusterNet = parsePrefix("10.192.0.0/11");

const invalid = (message: string): Refusal => ({ code: 3, message });

export interface MetropolisCall {
  readonly key: string;
  /** As sent. */
  readonly prefixes: readonly string[];
  /** External address in the caller's status; undefined while it has none. */
  readonly externalAddress: string | undefined;
}

/** Undefined when it takes the announcement. */
export function metropolisRefusal({ key, prefixes, externalAddress }: MetropolisCall): Refusal | undefined {
  if (!isKey(key)) return invalid("invalid public key");
  if (externalAddress === undefined) return { code: 9, message: "node has no external address" };
  for (const text of prefixes) {
    const prefix = decodePrefix(text);
    if ("reason" in prefix) return invalid("invalid prefix");
    if (containsPrefix(clusterNet, prefix)) continue;
    // As text: another spelling of the address in the status is another address.
    const address = decodeAddress(externalAddress);
    const isOwn = !("reason" in address) && prefix.text === hostPrefix(address).text;
    if (!isOwn || address.text !== externalAddress) {
      return invalid("prefix outside of the cluster network, and not the external address");
    }
  }
  return undefined;
}

/** Go's base64: line breaks do not count, nor what the last digit says beyond 32 bytes. */
function isKey(text: string): boolean {
  return /^[A-Za-z0-9+/]{43}=$/.test(text.replaceAll(/[\r\n]/g, ""));
}
