/**
 * What gRPC, the resolver and TLS say of a Curator that no connection came about with, in words of our own: what was
 * found there, and what to do.
 *
 * Their texts name functions of libraries, and one holds the time, so that it would be news at every try. What is not
 * known here stays as it came. A refusal is looked into: Bun 1.4.5 calls whatever connect(2) fails of ECONNREFUSED, no
 * route to the address and a machine that is switched off too, for which one looks elsewhere than for a Curator that
 * does not run. This can go when its sockets say ENETUNREACH and EHOSTUNREACH, as its fetch does.
 */
import { createSocket } from "node:dgram";
import { isIP } from "node:net";
import { curatorHost } from "../core/curators.ts";

/** What was found, and what to do where that is known. */
export interface Unreachable {
  readonly reason: string;
  readonly hint?: string;
}

/** The kernel gives a neighbour that says nothing up after 3 s; whoever refuses answers sooner. */
const silentMs = 2_500;

const checkWhere = "Check host and port: is that a Curator of this cluster?";

const noMachine: Unreachable = {
  reason: "no machine answers at that address",
  hint: "Is the machine up, and the address right?",
};
const refused: Unreachable = {
  reason: "connection refused",
  hint: "Does a Curator run there, on this address and port, and does no firewall refuse it?",
};

/** By a word that the text holds; the first that fits. The words are those of grpc-js 1.14.7, nice-grpc and Bun 1.4.5. */
const known: readonly (readonly [RegExp, Unreachable])[] = [
  [
    /^Connection attempt timed out/,
    {
      reason: "no answer within 5 s",
      hint: "Is the machine up, the address right, and does every firewall let TCP through to that port?",
    },
  ],
  [/^Protocol error/, { reason: "what answers there does not speak gRPC", hint: checkWhere }],
  [
    /^Failed to connect/,
    {
      reason: "the connection was closed at once",
      hint: `${checkWhere} One with TLS does that to a node that speaks without (--insecure)`,
    },
  ],
  [
    /WRONG_VERSION_NUMBER/,
    {
      reason: "what answers there does not speak TLS",
      hint: `${checkWhere} One that runs with --insecure speaks without TLS`,
    },
  ],
  [
    /^Client network socket disconnected|closed in the TLS handshake/,
    { reason: "the connection was closed in the TLS handshake", hint: checkWhere },
  ],
  [/did not end in time/, { reason: "no answer in the TLS handshake within 5 s", hint: checkWhere }],
  [
    /EAI_AGAIN/,
    {
      reason: "no name server answers",
      hint: "Check /etc/resolv.conf and the name server, or give the Curator's address instead of its name",
    },
  ],
  [
    /ENOTFOUND|^Name resolution failed/,
    { reason: "its name is not known", hint: "Check the name, or give the Curator's address instead" },
  ],
];

/** What `details` means. `tookMs`: how long the try took. */
export async function describeUnreachable(
  address: string,
  details: string,
  tookMs: number,
): Promise<Unreachable> {
  if (/\bECONNREFUSED\b/.test(details)) return await whyRefused(curatorHost(address), tookMs);
  const found = known.find(([pattern]) => pattern.test(details))?.[1];
  if (found !== undefined) return found;
  const ofTls = /^error:\w+:SSL routines:\w*:(\w+)/.exec(details)?.[1];
  if (ofTls === undefined) return { reason: details };
  const words = ofTls.toLowerCase().replaceAll("_", " ");
  return { reason: `the TLS handshake failed: ${words}`, hint: checkWhere };
}

/** Of a name nothing more can be said: the try took as long as the resolver too, and of its addresses one was refused. */
async function whyRefused(host: string, tookMs: number): Promise<Unreachable> {
  const family = isIP(host);
  if (family === 0) return refused;
  if (await hasNoRoute(host, family)) {
    return {
      reason: "this host has no route to it",
      hint: `Check the network of this host, and the address: \`ip route get ${host}\` shows the way`,
    };
  }
  return tookMs >= silentMs ? noMachine : refused;
}

/** True when the kernel knows no way there, or one that is closed. It is asked by a UDP socket that sends nothing. */
function hasNoRoute(address: string, family: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = createSocket(family === 6 ? "udp6" : "udp4");
    const end = (without: boolean): void => {
      socket.close();
      resolve(without);
    };
    socket.once("error", () => end(true));
    // The port plays no part. Bun gives a failure to this function, Node emits it.
    socket.connect(9, address, (error?: unknown) => end(error !== undefined && error !== null));
  });
}
