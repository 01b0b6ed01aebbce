/** The configuration file: its bytes, reading it back, and that no line of it comes from another node or into an error. */
import { heapStats } from "bun:jsc";
import { describe, expect, test } from "bun:test";
import { inspect } from "node:util";
import * as fc from "fast-check";
import { judgeNode } from "../../src/core/claim.ts";
import { parsePrivateKey } from "../../src/core/key.ts";
import type { Mesh, Peer } from "../../src/core/mesh.ts";
import type { Node } from "../../src/core/node.ts";
import { parseAddress, parsePrefix } from "../../src/core/prefix.ts";
import { renderWgConfig, WgConfigText } from "../../src/core/wg-config.ts";
import { parseWgConfig } from "../../src/core/wg-config-reader.ts";
import { describeError } from "../../src/errors.ts";
import { keyOf, meshOf, nodeId, nodeOf, rules } from "./nodes.ts";

/** Made by `wg genkey` for these tests only. */
const secret = "MOT4smwdQxqEH3MUoySfGckRqjJcoPfqB6jKN6xBS2I=";
const privateKey = parsePrivateKey(secret);

function peer(id: string, key: number, address: string | undefined, prefixes: readonly string[]): Peer {
  return {
    nodeId: nodeId(id),
    publicKey: keyOf(key),
    ...(address !== undefined && { address: parseAddress(address) }),
    prefixes: prefixes.map(parsePrefix),
  };
}

const mesh: Mesh = {
  peers: [
    peer("metropolis-b", 2, "192.0.2.2", ["10.192.2.0/24", "192.0.2.2/32"]),
    peer("metropolis-c", 3, "2001:db8::3", ["2001:db8::3/128"]),
    peer("metropolis-d", 4, undefined, []),
  ],
};

const text = `# Written by clusternet, which replaces the whole file at every change of the mesh.
[Interface]
PrivateKey = ${secret}
ListenPort = 7838

# node = metropolis-b
[Peer]
PublicKey = ${keyOf(2)}
Endpoint = 192.0.2.2:7838
AllowedIPs = 10.192.2.0/24, 192.0.2.2/32
PersistentKeepalive = 25

# node = metropolis-c
[Peer]
PublicKey = ${keyOf(3)}
Endpoint = [2001:db8::3]:7838
AllowedIPs = 2001:db8::3/128
PersistentKeepalive = 25

# node = metropolis-d
[Peer]
PublicKey = ${keyOf(4)}
PersistentKeepalive = 25
`;

describe("renderWgConfig()", () => {
  test("writes what wg setconf reads", () => {
    expect(renderWgConfig({ listenPort: 7838, mesh, keepaliveSeconds: 25 }, privateKey)).toBe(text);
  });

  test("hides the key for --dry-run, and writes no keepalive when there is none", () => {
    const shown = renderWgConfig({ listenPort: 7838, mesh }, undefined);
    expect(shown).toBe(text.replace(secret, "(hidden)").replaceAll("PersistentKeepalive = 25\n", ""));
  });

  test("gives the same bytes whatever order peers and prefixes came in", () => {
    const peers = mesh.peers
      .toReversed()
      .map((each): Peer => ({ ...each, prefixes: each.prefixes.toReversed() }));
    expect(renderWgConfig({ listenPort: 7838, mesh: { peers }, keepaliveSeconds: 25 }, privateKey)).toBe(
      text,
    );
  });

  test("a node ID cannot begin a line: every line has one of eight forms", () => {
    const ids = fc.oneof(
      fc.constantFrom("[Peer]", "#[Peer]", "PublicKey=x", '"\\n[Peer]"', "AllowedIPs=0.0.0.0/0"),
      fc.string({
        unit: fc.integer({ min: 0x21, max: 0x7e }).map((code) => String.fromCharCode(code)),
        minLength: 1,
        maxLength: 253,
      }),
    );
    fc.assert(
      fc.property(fc.uniqueArray(ids, { maxLength: 5 }), (list) => {
        const peers = list.map((id, index) => peer(id, index + 1, "192.0.2.2", [`10.192.${index}.0/24`]));
        const rendered = renderWgConfig({ listenPort: 7838, mesh: { peers } }, privateKey);
        const lines = rendered.split("\n").filter((line) => !line.startsWith("#"));
        expect(lines.filter((line) => line === "[Peer]").length).toBe(list.length);
        for (const line of lines) {
          expect(line).toMatch(
            /^(|\[Interface\]|\[Peer\]|(PrivateKey|PublicKey) = [A-Za-z0-9+/]{43}=|ListenPort = 7838|Endpoint = 192\.0\.2\.2:7838|AllowedIPs = 10\.192\.[0-9]\.0\/24)$/,
          );
        }
        expect(parseWgConfig(rendered).nodes.map(({ id }) => String(id))).toEqual(
          peers.map(({ nodeId }) => String(nodeId)).toSorted((a, b) => (a < b ? -1 : 1)),
        );
      }),
    );
  });
});

test("WgConfigText gives what renderWgConfig() gives, of one mesh after the other", () => {
  const all = Array.from({ length: 400 }, (_, at) =>
    peer(`n-${at}`, at + 1, "192.0.2.2", [`10.192.${at % 256}.0/24`]),
  ).toSorted((a, b) => (a.nodeId < b.nodeId ? -1 : 1));
  const numbers = fc.array(fc.nat(all.length - 1), { maxLength: 5 });
  const change = fc.record({
    removed: numbers,
    moved: numbers,
    all: fc.constantFrom(true, false, false, false),
  });
  fc.assert(
    fc.property(fc.array(change, { maxLength: 12 }), (changes) => {
      const config = { listenPort: 7838, keepaliveSeconds: 25 };
      const text = new WgConfigText(config, privateKey);
      let peers: readonly Peer[] = [];
      for (const { removed, moved, all: everybody } of [{ removed: [], moved: [], all: true }, ...changes]) {
        const kept = new Set(everybody ? all : peers);
        for (const at of removed) kept.delete(all[at] ?? expect.unreachable());
        peers = all
          .filter((each) => kept.has(each) || moved.some((at) => all[at] === each))
          .map((each, at) => (moved.includes(at) ? { ...each, address: parseAddress("192.0.2.99") } : each));
        const rendered = Buffer.concat(text.render({ peers })).toString();
        expect(rendered).toBe(renderWgConfig({ ...config, mesh: { peers } }, privateKey));
      }
    }),
    { numRuns: 50 },
  );
});

const byId = (a: Peer, b: Peer): number => (a.nodeId < b.nodeId ? -1 : 1);

test.each([
  { name: "in order of name", order: (count: number) => count },
  { name: "against it", order: (count: number) => -count },
  { name: "in no order", order: (count: number) => (count * 7_919) % 2_000 },
])("WgConfigText keeps few pieces of peers that come one by one, and go so, $name", ({ order }) => {
  const text = new WgConfigText({ listenPort: 7838 }, privateKey);
  const all = Array.from({ length: 2_000 }, (_, at) =>
    peer(`n-${10_000 + order(at)}`, at + 1, "192.0.2.2", []),
  );
  let peers: readonly Peer[] = [];
  let most = 0;
  for (const each of all) {
    peers = [...peers, each].toSorted(byId);
    most = Math.max(most, text.render({ peers }).length / (peers.length / 32 + 2));
  }
  for (const each of all.slice(100)) {
    peers = peers.filter((other) => other !== each);
    most = Math.max(most, text.render({ peers }).length / (peers.length / 32 + 2));
  }
  expect(most).toBeLessThan(1.1);
});

/** The node as its texts alone tell of it. */
function withoutParsed({ parsed: _parsed, ...node }: Node): Node {
  return node;
}

function heapBytes(): number {
  Bun.gc(true);
  return heapStats().heapSize;
}

describe("parseWgConfig()", () => {
  test("keeps of the text only what it gives back", () => {
    const peers = Array.from({ length: 1_000 }, (_, index) =>
      peer(`n${index}`, index + 1, "192.0.2.2", [`10.192.${index >> 8}.${index & 255}/32`]),
    );
    // The comment makes it 2 MB.
    const bytes = Buffer.from(
      `${renderWgConfig({ listenPort: 7838, mesh: { peers } }, privateKey)}#${"x".repeat(2_000_000)}\n`,
    );
    const kept = [parseWgConfig(bytes.toString())];
    const before = heapBytes();
    for (let turn = 0; turn < 10; turn++) kept.push(parseWgConfig(bytes.toString()));
    // Of 20 MB that were read.
    expect(heapBytes() - before).toBeLessThan(8e6);
    expect(kept.at(-1)?.nodes.length).toBe(1_000);
  });

  test("gives the peers back as nodes", () => {
    const parsed = parseWgConfig(text);
    expect([parsed.privateKey.reveal(), parsed.listenPort]).toEqual([secret, 7838]);
    const fromFile = { state: "unknown" as const };
    expect(parsed.nodes.map(withoutParsed)).toEqual([
      nodeOf({
        ...fromFile,
        id: "metropolis-b",
        publicKey: keyOf(2),
        externalAddress: "192.0.2.2",
        prefixes: ["10.192.2.0/24", "192.0.2.2/32"],
      }),
      nodeOf({
        ...fromFile,
        id: "metropolis-c",
        publicKey: keyOf(3),
        externalAddress: "2001:db8::3",
        prefixes: ["2001:db8::3/128"],
      }),
      nodeOf({ ...fromFile, id: "metropolis-d", publicKey: keyOf(4), externalAddress: "" }),
    ]);
  });

  test("a mesh that was written and read makes the same bytes again", () => {
    const prefix = fc
      .tuple(fc.nat(31), fc.nat(255), fc.constantFrom(24, 25, 32))
      .map(([a, b, length]) => `10.${192 + a}.${b}.0/${length}`);
    const nodes = fc.uniqueArray(
      fc.record({
        id: fc.string({ unit: fc.constantFrom(...'ab#[]="\\'.split("")), minLength: 1, maxLength: 6 }),
        key: fc.integer({ min: 1, max: 30 }),
        address: fc.constantFrom("192.0.2.5", "2001:db8::5", ""),
        prefixes: fc.array(fc.oneof(prefix, fc.constant("192.0.2.5/32"), fc.constant("fd00:c1:0:1::/64")), {
          maxLength: 4,
        }),
      }),
      { selector: ({ id }) => id, maxLength: 12 },
    );
    fc.assert(
      fc.property(
        nodes,
        fc.option(fc.integer({ min: 1, max: 65_535 }), { nil: undefined }),
        (list, keepaliveSeconds) => {
          const { mesh } = meshOf(
            list.map(({ id, key, address, prefixes }) =>
              nodeOf({ id, publicKey: keyOf(key), externalAddress: address, prefixes }),
            ),
          );
          const config = { listenPort: 7838, ...(keepaliveSeconds !== undefined && { keepaliveSeconds }) };
          const rendered = renderWgConfig({ ...config, mesh }, privateKey);
          const { nodes } = parseWgConfig(rendered);
          for (const node of nodes) {
            const claim = judgeNode(node, rules);
            expect(claim).toEqual(judgeNode(withoutParsed(node), rules));
            const { problems } = claim;
            expect(problems.filter(({ kind }) => kind !== "address-missing")).toEqual([]);
          }
          expect(renderWgConfig({ ...config, mesh: meshOf(nodes).mesh }, privateKey)).toBe(rendered);
        },
      ),
    );
  });

  const head = `[Interface]\nPrivateKey = ${secret}\nListenPort = 7838\n`;
  const node = `\n# node = b\n[Peer]\nPublicKey = ${keyOf(2)}\n`;

  test.each([
    { name: "an empty file", file: "", want: "line 1: no [Interface] section at the start" },
    { name: "only an end of line", file: "\n", want: "line 1: no [Interface] section at the start" },
    { name: "another program's text", file: "hello\n", want: "line 1: a line that is not understood" },
    {
      name: "a key name with a typo (CASES 27)",
      file: `[Interface]\nPrivatKey=${secret}\nListenPort = 7838\n`,
      want: "line 2: a line that is not understood",
    },
    {
      name: "a key name with a typo, spaced",
      file: `[Interface]\nPrivatKey = ${secret}\n`,
      want: "line 2: a line that is not understood",
    },
    {
      name: "a key alone in a line",
      file: `[Interface]\n${secret}\n`,
      want: "line 2: a line that is not understood",
    },
    {
      name: "a key in place of a node ID",
      file: `${head}# node = x ${secret}\n[Peer]\n`,
      want: "line 4: no node ID",
    },
    {
      name: "a key in place of an endpoint",
      file: `${head}${node}Endpoint = ${secret}\n`,
      want: "line 8: an endpoint that is not an IP address and the listen port",
    },
    {
      name: "a key in place of a prefix",
      file: `${head}${node}AllowedIPs = ${secret}\n`,
      want: "line 8: a malformed prefix",
    },
    {
      name: "a key in place of a number",
      file: `${head}${node}PersistentKeepalive = ${secret}\n`,
      want: "line 8: a number that is not 1 to 65535",
    },
    {
      name: "a damaged private key",
      file: `[Interface]\nPrivateKey = ${secret.slice(1)}\nListenPort = 1\n`,
      want: "line 2: an unusable PrivateKey",
    },
    {
      name: "a hidden private key",
      file: "[Interface]\nPrivateKey = (hidden)\nListenPort = 1\n",
      want: "line 2: an unusable PrivateKey",
    },
    {
      name: "no private key",
      file: "[Interface]\nListenPort = 7838\n",
      want: "line 1: a section without PrivateKey",
    },
    {
      name: "no port",
      file: `[Interface]\nPrivateKey = ${secret}\n`,
      want: "line 1: a section without ListenPort",
    },
    { name: "port 0", file: head.replace("7838", "0"), want: "line 3: a number that is not 1 to 65535" },
    {
      name: "port 65536",
      file: head.replace("7838", "65536"),
      want: "line 3: a number that is not 1 to 65535",
    },
    {
      name: "a setting twice",
      file: `${head}ListenPort = 7838\n`,
      want: "line 4: ListenPort for the second time",
    },
    {
      name: "a setting of another section",
      file: `${head}Endpoint = 192.0.2.2:7838\n`,
      want: "line 4: a line that is not understood",
    },
    {
      name: "settings that are not ours",
      file: `${head}FwMark = 0x1\n`,
      want: "line 4: a line that is not understood",
    },
    { name: "two interfaces", file: `${head}${head}`, want: "line 4: a second [Interface] section" },
    {
      name: "a peer first",
      file: `${node.slice(1)}${head}`,
      want: "line 2: no [Interface] section at the start",
    },
    {
      name: "a peer without its node",
      file: `${head}[Peer]\nPublicKey = ${keyOf(2)}\n`,
      want: 'line 4: a [Peer] without "# node = …" on the line before',
    },
    {
      name: "a node without its peer",
      file: `${head}# node = b\n`,
      want: "line 4: no [Peer] after the line of its node",
    },
    {
      name: "a line between node and peer",
      file: `${head}# node = b\n\n[Peer]\n`,
      want: "line 5: no [Peer] after the line of its node",
    },
    {
      name: "a peer without key",
      file: `${head}# node = b\n[Peer]\n`,
      want: "line 5: a section without PublicKey",
    },
    {
      name: "a bad public key",
      file: `${head}# node = b\n[Peer]\nPublicKey = AAAA\n`,
      want: "line 6: an unusable PublicKey",
    },
    {
      name: "a node twice",
      file: `${head}${node}${node.replace(keyOf(2), keyOf(3))}`,
      want: "line 10: a node that was there before",
    },
    {
      name: "a public key twice",
      file: `${head}${node}${node.replace("= b", "= c")}`,
      want: "line 10: a public key that was there before",
    },
    {
      name: "an endpoint by name",
      file: `${head}${node}Endpoint = nx.invalid:7838\n`,
      want: "line 8: an endpoint that is not an IP address and the listen port",
    },
    {
      name: "an endpoint of another port",
      file: `${head}${node}Endpoint = 192.0.2.2:51820\n`,
      want: "line 8: an endpoint that is not an IP address and the listen port",
    },
    {
      name: "an endpoint without brackets",
      file: `${head}${node}Endpoint = 2001:db8::2:7838\n`,
      want: "line 8: an endpoint that is not an IP address and the listen port",
    },
    {
      name: "host bits",
      file: `${head}${node}AllowedIPs = 10.192.2.1/24\n`,
      want: "line 8: a malformed prefix",
    },
    { name: "a file that was cut off", file: text.slice(0, -4), want: "line 23: a line without an end" },
    {
      name: "lines of another system",
      file: text.replaceAll("\n", "\r\n"),
      want: "line 2: a line that is not understood",
    },
  ])("refuses $name by its line and shows none of it", ({ file, want }) => {
    let shown = "";
    let message = "";
    try {
      parseWgConfig(file);
    } catch (error) {
      message = error instanceof Error ? error.message : "";
      shown = describeError(error) + inspect(error);
    }
    expect(message).toBe(`Cannot parse configuration: ${want}`);
    expect(shown).not.toContain(secret.slice(1, 12));
  });

  test("any damage to one character is refused, harmless or in a value, and never shows the key", () => {
    fc.assert(
      fc.property(
        fc.nat(text.length - 1),
        fc.constantFrom("", "x", "=", "\n", " ", "#", "\u0000"),
        (at, character) => {
          const damaged = text.slice(0, at) + character + text.slice(at + 1);
          try {
            const { nodes } = parseWgConfig(damaged);
            expect(nodes.length).toBeLessThanOrEqual(3);
          } catch (error) {
            expect(describeError(error)).toStartWith("Cannot parse configuration: line ");
            expect(describeError(error) + inspect(error)).not.toContain(secret.slice(8, 30));
          }
        },
      ),
      { numRuns: 2_000 },
    );
  });
});
