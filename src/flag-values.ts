/**
 * What the value of a flag must look like: each form is a function from its text to the value, of which `text` makes a
 * schema.
 *
 * A text that is not of its form is thrown back as a FormError, or as the ClusternetError of whoever else parses it;
 * both become the words after "Cannot use --flag "value": ".
 */
import { resolve } from "node:path";
import * as v from "valibot";
import {
  formOfNumber,
  interfaceNameForm,
  isInRange,
  isInterfaceName,
  isPath,
  type NumberRange,
} from "./checks.ts";
import { asNodeId, nodeIdProblem, type NodeId } from "./core/node.ts";
import { type Address, parseAddress } from "./core/prefix.ts";
import { quote } from "./core/problem.ts";
import { ClusternetError } from "./errors.ts";
import { inCluster, nodeNameProblem } from "./kubernetes/names.ts";

/** A host and a TCP port, as written by an operator. */
export interface HostPort {
  /** Name or canonical address, without brackets. */
  readonly host: string;
  /** Present when the host is written as an address. */
  readonly address?: Address;
  readonly port: number;
  /** HOST:PORT with IPv6 in brackets: what is dialled. */
  readonly text: string;
}

/** TCP port of a Curator when none is written. */
export const curatorPort = 7835;
/** What is wrong with a value, without naming it: "found, expected …". */
class FormError extends Error {}

/** A text as its value by `parse`; whatever that throws becomes the issue's message. */
export function text<T>(parse: (text: string) => T) {
  return v.pipe(
    v.string(),
    v.rawTransform<string, T>(({ dataset, addIssue, NEVER }) => {
      try {
        return parse(dataset.value);
      } catch (error) {
        if (!(error instanceof FormError || error instanceof ClusternetError)) throw error;
        addIssue({ message: formMessage(dataset.value, error) });
        return NEVER;
      }
    }),
  );
}

/** One line of an error: the hint in brackets, and without naming the value a second time. */
function formMessage(value: string, error: Error): string {
  const hint = error instanceof ClusternetError && error.hint !== undefined ? ` (${error.hint})` : "";
  const found = error.message.indexOf(`${quote(value)}: `);
  return (found < 0 ? error.message : error.message.slice(found + quote(value).length + 2)) + hint;
}

/** A whole number of the range, without a sign or zeros in front. */
export function wholeNumber(range: NumberRange) {
  return (found: string): number => {
    const value = /^(0|[1-9][0-9]{0,9})$/.test(found) ? Number(found) : Number.NaN;
    if (isInRange(value, range)) return value;
    throw new FormError(`expected ${formOfNumber(range)}`);
  };
}

/** One of these words. */
export function oneOf<const T extends string>(...choices: readonly T[]) {
  return (found: string): T => {
    const choice = choices.find((each) => each === found);
    if (choice !== undefined) return choice;
    throw new FormError(`expected ${choices.slice(0, -1).join(", ")} or ${choices.at(-1)}`);
  };
}

/** This word, or what `parse` takes. */
export function orWord<const W extends string, T>(word: W, parse: (text: string) => T) {
  return (found: string): T | W => (found === word ? word : parse(found));
}

/** A switch, as it is written in the environment. */
export function parseSwitch(found: string): boolean {
  if (found === "1" || found === "true") return true;
  if (found === "0" || found === "false") return false;
  throw new FormError("expected 1, 0, true or false");
}

/** The path of a directory, which need not be there. */
export function parseDirectory(found: string): string {
  if (!isPath(found)) throw new FormError("expected the path of a directory");
  return found;
}

/** The path of a data directory. Made absolute here, once: the programs that are given files of it run in another directory. */
export function parseDataDirectory(found: string): string {
  return resolve(parseDirectory(found));
}

/** The path of a file, which need not be there. */
export function parseFile(found: string): string {
  if (!isPath(found)) throw new FormError("expected the path of a file");
  return found;
}

/** The path of a kubeconfig. Made absolute here: what it names is relative to its directory. */
export function parseKubeconfigPath(found: string): string {
  if (!isPath(found)) throw new FormError(`expected the path of a kubeconfig, or ${inCluster}`);
  return resolve(found);
}

/** The name of a Node. */
export function parseKubernetesNode(found: string): string {
  const reason = nodeNameProblem(found);
  if (reason !== undefined) throw new ClusternetError(reason);
  return found;
}

/** The name of a network interface. */
export function parseInterfaceName(found: string): string {
  if (isInterfaceName(found)) return found;
  throw new FormError(`expected ${interfaceNameForm}`);
}

/** A node ID. */
export function parseNodeId(found: string): NodeId {
  const id = asNodeId(found);
  if (id === undefined) throw new ClusternetError(nodeIdProblem(found));
  return id;
}

const hostLabel = /^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$/;

function isHostName(host: string): boolean {
  const labels = host.replace(/\.$/, "").split(".");
  // A name that ends in a number is an IPv4 address to the resolver, and this one would have been parsed as one.
  return (
    host.length <= 253 &&
    labels.every((label) => hostLabel.test(label)) &&
    !/^[0-9]+$/.test(labels.at(-1) ?? "")
  );
}

/**
 * HOST:PORT, HOST, [IPV6]:PORT or [IPV6]. An IPv6 address without brackets is refused, since its last group
 * could be meant as the port.
 */
export function hostPort(leastPort: number) {
  return (found: string): HostPort => {
    const match = /^(?:\[([^\]]*)\]|([^:[\]]*))(?::([^:]*))?$/.exec(found);
    const bracketed = match?.[1];
    const plain = match?.[2];
    if (match === null || (bracketed === undefined && plain === undefined)) {
      const bare = addressOrNone(found);
      const example = bare === undefined ? "" : ` (write [${bare.text}]:${curatorPort})`;
      throw new FormError(`expected HOST:PORT, with an IPv6 address in brackets${example}`);
    }
    const portText = match[3];
    let port = curatorPort;
    if (portText !== undefined) {
      port = /^(0|[1-9][0-9]{0,4})$/.test(portText) ? Number(portText) : Number.NaN;
      if (!(port >= leastPort && port <= 65535)) {
        throw new FormError(`port is ${quote(portText)}, expected ${leastPort} to 65535`);
      }
    }
    const host = bracketed ?? plain ?? "";
    const address = addressOrNone(host);
    const rightFamily = bracketed === undefined ? address?.family !== 6 : address?.family === 6;
    if (!rightFamily || (address === undefined && !isHostName(host))) {
      const expected =
        bracketed === undefined ? "a host name or an IP address" : "an IPv6 address in the brackets";
      throw new FormError(`host is ${quote(host)}, expected ${expected}`);
    }
    const canonical = address?.text ?? host;
    return {
      host: canonical,
      ...(address === undefined ? {} : { address }),
      port,
      text: address?.family === 6 ? `[${canonical}]:${port}` : `${canonical}:${port}`,
    };
  };
}

/** Where to listen. A word without a port would pass for the name of a host, which nobody can tell to be none before it is looked up. */
export function parseListen(found: string): HostPort {
  const parsed = hostPort(0)(found);
  if (parsed.address !== undefined || found.includes(":")) return parsed;
  throw new FormError(`it has no port, expected HOST:PORT (${curatorPort} is the Curators' port)`);
}

function addressOrNone(found: string): Address | undefined {
  try {
    return parseAddress(found);
  } catch (error) {
    // Not an address is an answer here: it can still be a host name.
    if (error instanceof ClusternetError) return undefined;
    throw error;
  }
}
