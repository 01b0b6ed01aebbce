/**
 * Reads the underlay of this host for core/underlay.ts: devices, the route to the Curator, the default routes.
 *
 * What cannot be found out is left out: a name that does not resolve, a Curator without a route and a family that
 * the kernel does not have are no errors, since others of the parts may still tell enough.
 */
import { lookup as dnsLookup } from "node:dns/promises";
import { decodeAddress, type Address, type Family } from "../core/prefix.ts";
import { parseDevices, parseRoute, type Underlay, type UnderlayRoute } from "../core/underlay.ts";
import { CommandError } from "../errors.ts";
import type { RunCommand } from "./command.ts";
import { ipReading } from "./ip-batch.ts";

/** A name server that does not answer must not hold the mesh back. */
const lookupTimeoutMs = 2000;

/** Addresses of a host name. */
export type Lookup = (hostName: string) => Promise<readonly string[]>;

export interface UnderlayOptions {
  readonly run: RunCommand;
  /** Names or addresses of the Curators, the one in use first: the first that has a route decides. */
  readonly curatorHosts: readonly string[];
  /** Whether this is enough, so that the default routes are not asked for. */
  readonly isEnough?: (underlay: Omit<Underlay, "defaultRoutes">) => boolean;
  /** Default: the system's resolver. */
  readonly lookup?: Lookup;
  /** Limit on looking up one name. Default 2 s. */
  readonly lookupTimeoutMs?: number;
}

/** Throws CommandError when `ip` cannot show the devices, ClusternetError when it shows something else. */
export async function readUnderlay(options: UnderlayOptions): Promise<Underlay> {
  const { run } = options;
  // Together, so that one process can show both.
  const [shown, curatorRoute] = await Promise.all([
    run(ipReading("address show")),
    readCuratorRoute(options),
  ]);
  const devices = parseDevices(shown);
  const known = { devices, ...(curatorRoute === undefined ? {} : { curatorRoute }) };
  if (options.isEnough?.(known) === true) return { ...known, defaultRoutes: [] };
  const defaultRoutes = [
    await readRoute(run, ipReading("route show default", 4), 4),
    await readRoute(run, ipReading("route show default", 6), 6),
  ].filter((route) => route !== undefined);
  return { ...known, defaultRoutes };
}

async function readCuratorRoute(options: UnderlayOptions): Promise<UnderlayRoute | undefined> {
  for (const hostName of options.curatorHosts) {
    for (const { text, family } of await resolve(hostName, options)) {
      const route = await readRoute(options.run, ipReading(`route get ${text}`), family);
      if (route !== undefined) return route;
    }
  }
  return undefined;
}

async function readRoute(
  run: RunCommand,
  argv: readonly string[],
  family: Family,
): Promise<UnderlayRoute | undefined> {
  try {
    return parseRoute(await run(argv), family);
  } catch (error) {
    // "Network is unreachable", or a kernel without IPv6: no route, which is what was asked.
    if (error instanceof CommandError) return undefined;
    throw error;
  }
}

async function resolve(hostName: string, options: UnderlayOptions): Promise<readonly Address[]> {
  const { lookup = lookupBySystem, lookupTimeoutMs: timeoutMs = lookupTimeoutMs } = options;
  const literal = decodeAddress(hostName);
  if (!("reason" in literal)) return [literal];
  let timer: ReturnType<typeof setTimeout> | undefined;
  const timeout = new Promise<readonly string[]>((done) => {
    timer = setTimeout(done, timeoutMs, []);
  });
  try {
    const texts = await Promise.race([lookup(hostName), timeout]);
    return texts.map(decodeAddress).flatMap((address) => ("reason" in address ? [] : [address]));
  } catch {
    // Whatever the resolver says, without an address there is no route to look for.
    return [];
  } finally {
    clearTimeout(timer);
  }
}

async function lookupBySystem(hostName: string): Promise<readonly string[]> {
  const found = await dnsLookup(hostName, { all: true });
  return found.map(({ address }) => address);
}
