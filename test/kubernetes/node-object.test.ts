/** What of a Node object is taken, and what the API may say besides. */
import { describe, expect, test } from "bun:test";
import {
  decodeNodeList,
  decodePodCidrs,
  decodeStatus,
  decodeWatchEvent,
} from "../../src/kubernetes/node-object.ts";
import { failure } from "../host/temporary.ts";

const metadata = { name: "n1", resourceVersion: "7", uid: "x" };

function listOf(...items: readonly unknown[]): string {
  return JSON.stringify({ kind: "NodeList", apiVersion: "v1", metadata: { resourceVersion: "9" }, items });
}

test.each([
  {
    name: "of both families",
    spec: { podCIDR: "10.0.0.0/24", podCIDRs: ["10.0.0.0/24", "fd00::/64"] },
    want: ["10.0.0.0/24", "fd00::/64"],
  },
  {
    name: "of the old field when the list is empty",
    spec: { podCIDR: "10.0.0.0/24", podCIDRs: [] },
    want: ["10.0.0.0/24"],
  },
  { name: "of the old field alone", spec: { podCIDR: "10.0.0.0/24" }, want: ["10.0.0.0/24"] },
  {
    name: "of the list, whatever the old field says",
    spec: { podCIDR: "10.9.0.0/24", podCIDRs: ["10.0.0.0/24"] },
    want: ["10.0.0.0/24"],
  },
  { name: "none", spec: {}, want: [] },
  { name: "none of nulls", spec: { podCIDR: null, podCIDRs: null }, want: [] },
  { name: "none of empty texts", spec: { podCIDR: "" }, want: [] },
  { name: "none without a spec", spec: undefined, want: [] },
  {
    name: "as text whatever else stands in the list",
    spec: { podCIDRs: [7, null, { a: 1 }, "x"] },
    want: ["7", "null", '{"a":1}', "x"],
  },
])("decodeNodeList() takes pod networks $name", ({ spec, want }) => {
  expect(decodeNodeList(listOf({ metadata, spec, status: {} }))).toEqual({
    resourceVersion: "9",
    nodes: [{ name: "n1", resourceVersion: "7", podCidrs: want }],
  });
});

test.each([
  { name: "of no node", text: listOf() },
  { name: "of null", text: listOf().replace("[]", "null") },
])("decodeNodeList() takes a list $name", ({ text }) => {
  expect(decodeNodeList(text)).toEqual({ resourceVersion: "9", nodes: [] });
});

test.each([
  { name: "HTML", text: "<html>", want: "it is not JSON" },
  { name: "nothing", text: "", want: "it is not JSON" },
  {
    name: "another list",
    text: '{"kind":"PodList"}',
    want: 'field "kind" is missing or wrong, expected a NodeList',
  },
  { name: "a text", text: '"x"', want: "it is not a NodeList" },
  {
    name: "no version",
    text: '{"kind":"NodeList","metadata":{}}',
    want: "it has no resourceVersion, expected a NodeList",
  },
  {
    name: "a node that is none",
    text: listOf({ metadata: 7 }),
    want: 'field "items.0.metadata" is missing or wrong, expected a NodeList',
  },
  {
    name: "pod networks that are a text",
    text: listOf({ metadata, spec: { podCIDRs: "10.0.0.0/24" } }),
    want: 'field "items.0.spec.podCIDRs" is missing or wrong, expected a NodeList',
  },
])("decodeNodeList() refuses $name", async ({ text, want }) => {
  expect((await failure(() => decodeNodeList(text))).message).toBe(want);
});

const node = { name: "n1", resourceVersion: "7", podCidrs: ["10.0.0.0/24"] };
const object = { metadata, spec: { podCIDRs: ["10.0.0.0/24"] } };

test.each([
  { name: "a new node", line: { type: "ADDED", object }, want: { kind: "changed", node } },
  { name: "a changed node", line: { type: "MODIFIED", object }, want: { kind: "changed", node } },
  { name: "a deleted node", line: { type: "DELETED", object }, want: { kind: "deleted", node } },
  {
    name: "a bookmark",
    line: { type: "BOOKMARK", object: { metadata: { resourceVersion: "12" } } },
    want: { kind: "bookmark", resourceVersion: "12" },
  },
  {
    name: "an error",
    line: { type: "ERROR", object: { code: 410, reason: "Expired", message: "too old" } },
    want: { kind: "error", status: { code: 410, reason: "Expired", message: "too old" } },
  },
  {
    name: "an error that says nothing",
    line: { type: "ERROR", object: 7 },
    want: { kind: "error", status: { code: 0, reason: "", message: "" } },
  },
  { name: "a kind that is new", line: { type: "RENAMED", object }, want: { kind: "unknown" } },
])("decodeWatchEvent() takes $name", ({ line, want }) => {
  expect(decodeWatchEvent(JSON.stringify(line))).toEqual(want as ReturnType<typeof decodeWatchEvent>);
});

test.each([
  { name: "half a line", line: '{"type":"ADD', want: "it is not JSON" },
  { name: "no type", line: "{}", want: 'field "type" is missing or wrong, expected a watch event' },
  {
    name: "no node",
    line: '{"type":"ADDED","object":{}}',
    want: 'field "metadata" is missing or wrong, expected a Node',
  },
  { name: "no bookmark", line: `{"type":"BOOKMARK","object":7}`, want: "it is not a bookmark" },
])("decodeWatchEvent() refuses $name", async ({ line, want }) => {
  expect((await failure(() => decodeWatchEvent(line))).message).toBe(want);
});

test("decodeStatus() makes something of anything", () => {
  for (const anything of [undefined, null, 7, "x", [], { code: "x" }, { message: 7 }]) {
    expect(decodeStatus(anything)).toEqual({ code: 0, reason: "", message: "" });
  }
});

describe("decodePodCidrs()", () => {
  const hundreds = Array.from(
    { length: 400 },
    (_, index) => `10.192.${index % 256}.${index < 256 ? 0 : 128}/25`,
  );
  test.each<{
    name: string;
    podCidrs: readonly string[];
    want: readonly string[];
    problems?: readonly string[];
  }>([
    { name: "nothing of nothing", podCidrs: [], want: [] },
    {
      name: "all in their order, in canonical text, each once",
      podCidrs: ["fd00::/64", "10.192.2.0/24", "10.192.1.0/24", "FD00:0::/64", "10.192.2.0/24"],
      want: ["fd00::/64", "10.192.2.0/24", "10.192.1.0/24"],
    },
    {
      name: "the good ones among malformed ones, each of which is one problem",
      podCidrs: [
        "10.192.1.0/33",
        "10.192.1.0/24",
        "",
        "x\u001B[31m",
        "10.192.01.0/24",
        "10.192.1.0",
        "x\u001B[31m",
        "7",
      ],
      want: ["10.192.1.0/24"],
      problems: [
        '"10.192.1.0/33": prefix length is "33", expected 0 to 32',
        '"": has no prefix length, expected ADDRESS/LENGTH',
        '"x\\u{1b}[31m": has no prefix length, expected ADDRESS/LENGTH',
        '"10.192.01.0/24": not an IPv4 address, expected four numbers from 0 to 255 without leading zeros, like 192.0.2.1',
        '"10.192.1.0": has no prefix length, expected ADDRESS/LENGTH',
        '"7": has no prefix length, expected ADDRESS/LENGTH',
      ],
    },
    {
      name: "those with host bits and those outside ClusterNet, which the announcement judges",
      podCidrs: ["10.192.1.7/24", "172.16.0.0/24"],
      want: ["10.192.1.7/24", "172.16.0.0/24"],
    },
    { name: "hundreds", podCidrs: hundreds, want: hundreds },
  ])("takes $name", ({ podCidrs, want, problems = [] }) => {
    const found = decodePodCidrs({ name: "n1", podCidrs });
    expect(found.prefixes.map(({ text }) => text)).toEqual([...want]);
    expect(found.problems).toEqual(
      problems.map((reason) => ({
        kind: "prefix-malformed",
        message: `Cannot use pod network of Kubernetes Node "n1": ${reason}`,
      })),
    );
  });

  test("takes 1,024 and counts the rest", () => {
    const podCidrs = Array.from(
      { length: 1_100 },
      (_, index) => `10.${192 + (index >> 8)}.${index & 255}.0/24`,
    );
    const { prefixes, problems } = decodePodCidrs({ name: "n1", podCidrs });
    expect([prefixes.length, problems.map(({ message }) => message)]).toEqual([
      1_024,
      ['Cannot use all pod networks of Kubernetes Node "n1": it has 1100, of which the first 1024 are taken'],
    ]);
  });
});
