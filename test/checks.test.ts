/** What the library refuses: the same values as the command line (settings.test.ts), before anything is opened. */
import { describe, expect, test } from "bun:test";
import { checkOptions, type CheckedOptions } from "../src/checks.ts";
import { parsePrefix } from "../src/core/prefix.ts";
import { ClusternetError } from "../src/errors.ts";
import { createCurator, Prefixes, Service, Value, type NetworkStatus } from "../src/index.ts";

const usable: CheckedOptions = { clusterNet: "10.192.0.0/11", dataDirectory: "/nonexistent" };

function serviceOf(options: Partial<CheckedOptions>): Service {
  return new Service({
    ...usable,
    ...options,
    nodeId: "a",
    curator: createCurator({ addresses: ["127.0.0.1:7835"], nodeId: "a", insecure: true }),
    localKubernetesPodNetwork: new Value<Prefixes | undefined>(undefined),
    network: new Value<NetworkStatus | undefined>(undefined),
  });
}

/** What the constructor says of these options: name of the error and message; undefined when it takes them. */
function refusal(options: Partial<CheckedOptions>): string | undefined {
  try {
    serviceOf(options);
    return undefined;
  } catch (error) {
    if (!(error instanceof ClusternetError)) throw error;
    return `${error.name}: ${error.message}`;
  }
}

describe("new Service()", () => {
  test.each<{ name: string; options: Partial<CheckedOptions>; want: string }>([
    {
      name: "every address",
      options: { clusterNet: "0.0.0.0/0" },
      want: 'SettingsError: Cannot use clusterNet "0.0.0.0/0": it is every address, expected a part',
    },
    {
      name: "what is never routed into a mesh",
      options: { clusterNet: ["10.192.0.0/11", "fe80::/16"] },
      want: 'SettingsError: Cannot use clusterNet "fe80::/16": it overlaps fe80::/10, which is never routed into a mesh',
    },
    {
      name: "two networks of a family",
      options: { clusterNet: ["10.192.0.0/11", parsePrefix("10.0.0.0/11")] },
      want: 'UsageError: Cannot use clusterNet "10.192.0.0/11" and "10.0.0.0/11": expected one IPv4 network at most',
    },
    {
      name: "no network",
      options: { clusterNet: [] },
      want: "UsageError: Cannot use clusterNet: no network was given, expected one at least",
    },
    {
      name: "a network with host bits, as text",
      options: { clusterNet: "10.192.0.1/11" },
      want: 'ClusternetError: Cannot parse prefix "10.192.0.1/11": has bits set behind its prefix length, expected 10.192.0.0/11',
    },
    {
      name: "a network with host bits, as Prefixes gives it",
      options: { clusterNet: [...new Prefixes(["10.192.0.1/11"])] },
      want: 'ClusternetError: Cannot parse prefix "10.192.0.1/11": has bits set behind its prefix length, expected 10.192.0.0/11',
    },
    {
      name: "an interface name that leaves the data directory",
      options: { interfaceName: "../../etc/x" },
      want: 'UsageError: Cannot use interfaceName "../../etc/x": expected 1 to 15 characters of A-Z, a-z, 0-9, _, . and -, not starting with - or ., and not all, default, interfaces or lo',
    },
    {
      name: "an interface that is another",
      options: { interfaceName: "interfaces" },
      want: 'UsageError: Cannot use interfaceName "interfaces": expected 1 to 15 characters of A-Z, a-z, 0-9, _, . and -, not starting with - or ., and not all, default, interfaces or lo',
    },
    {
      name: "an empty data directory",
      options: { dataDirectory: "" },
      want: 'UsageError: Cannot use dataDirectory "": expected the path of a directory',
    },
    {
      name: "a port that is none",
      options: { listenPort: 99_999 },
      want: "UsageError: Cannot use listenPort 99999: expected a whole number from 1 to 65535",
    },
    {
      name: "a fraction",
      options: { keepaliveSeconds: 2.5 },
      want: "UsageError: Cannot use keepaliveSeconds 2.5: expected a whole number from 1 to 65535",
    },
    {
      name: "no number",
      options: { resyncSeconds: Number.NaN },
      want: "UsageError: Cannot use resyncSeconds NaN: expected a whole number from 1 to 2147483",
    },
    {
      name: "an MTU below what IP needs",
      options: { mtu: 500 },
      want: "UsageError: Cannot use mtu 500: expected a whole number from 576 to 65535",
    },
    {
      name: "an MTU below what IPv6 needs",
      options: { mtu: 1000, clusterNet: ["10.192.0.0/11", "fd00:c1::/48"] },
      want: 'SettingsError: Cannot use mtu "1000": ClusterNet fd00:c1::/48 is IPv6, which needs 1280 or more',
    },
  ])("refuses $name", ({ options, want }) => {
    expect(refusal(options)).toBe(want);
  });

  test.each<{ name: string; options: Partial<CheckedOptions> }>([
    { name: "nothing but what it must be given", options: {} },
    {
      name: "both ends of every range",
      options: {
        clusterNet: ["fd00:c1::/48", parsePrefix("10.192.0.0/11")],
        interfaceName: "A_1.-bcdefghijk",
        listenPort: 65_535,
        mtu: 1280,
        keepaliveSeconds: 1,
        resyncSeconds: 2_147_483,
      },
    },
    { name: "an MTU of 576 without IPv6", options: { mtu: 576, listenPort: 1, keepaliveSeconds: 65_535 } },
  ])("takes $name", ({ options }) => {
    expect(refusal(options)).toBeUndefined();
  });
});

test("checkOptions() gives the networks in the order given", () => {
  const clusterNet = ["FD00:C1:0::/48", parsePrefix("10.192.0.0/11")];
  expect(checkOptions({ ...usable, clusterNet }).map(({ text }) => text)).toEqual([
    "fd00:c1::/48",
    "10.192.0.0/11",
  ]);
});
