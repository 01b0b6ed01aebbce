/**
 * Every reader of texts and files that others write, on damaged input: what `wg` and `ip` print, the files of the data
 * directory, certificates and keys. What comes over connections is in calls.test.ts.
 */
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { X509Certificate } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as fc from "fast-check";
import { judgeNode } from "../../src/core/claim.ts";
import { leaderAddress, rememberedCurator } from "../../src/core/curators.ts";
import { parsePrivateKey, parsePublicKey } from "../../src/core/key.ts";
import { buildMesh, noIncumbents } from "../../src/core/mesh.ts";
import { parseAddress, parsePrefix } from "../../src/core/prefix.ts";
import { SeenPeers } from "../../src/core/seen-peers.ts";
import { chooseExternalAddress, chooseMtu, parseDevices, parseRoute } from "../../src/core/underlay.ts";
import { renderWgConfig } from "../../src/core/wg-config.ts";
import { parseWgConfig } from "../../src/core/wg-config-reader.ts";
import { openSqliteStore } from "../../src/curator-server/sqlite-store.ts";
import { decodeWatchEvent } from "../../src/curator/wire.ts";
import { messageOf } from "../../src/errors.ts";
import { WatchEvent } from "../../src/gen/curator.ts";
import { redactKeys } from "../../src/host/command.ts";
import { readKeyFile } from "../../src/host/key-file.ts";
import { MeshFile } from "../../src/host/mesh-file.ts";
import { hintOf } from "../../src/host/monitor.ts";
import { hasListener, parseIpLinks, parseIpRoutes } from "../../src/host/read.ts";
import { parseWgDump, WgDumpReader, type WgDump } from "../../src/host/wg-dump.ts";
import { StateFile } from "../../src/host/state-file.ts";
import { createLog } from "../../src/log.ts";
import { buildStatus, noCurator } from "../../src/status.ts";
import { judgeCertificates } from "../../src/trust/certificate.ts";
import { readCredentials } from "../../src/trust/credentials.ts";
import { keyOf, nodeId, rules } from "../core/nodes.ts";
import { statusBytes } from "../curator-server/cluster.ts";
import { impostors, TestTrust } from "../trust/cluster.ts";
import watchFixture from "../fixtures/watch.json";
import { damagedBytes, damagedJson, damagedText } from "./damage.ts";
import { expectShowable, holdToIt, readOnce, runsOf, secret } from "./verdict.ts";

const fixture = (name: string): string =>
  readFileSync(join(import.meta.dir, "../fixtures/host", name), "utf8");

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "clusternet-fuzz-"));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

/** A file with this content. */
function fileWith(name: string, content: string | Uint8Array): string {
  const path = join(directory, name);
  writeFileSync(path, content, { mode: 0o600 });
  return path;
}

const config = renderWgConfig(
  {
    listenPort: 7838,
    keepaliveSeconds: 25,
    mesh: {
      peers: [
        {
          nodeId: nodeId("metropolis-b"),
          publicKey: keyOf(2),
          address: parseAddress("192.0.2.2"),
          prefixes: ["10.192.2.0/24", "192.0.2.2/32"].map(parsePrefix),
        },
        {
          nodeId: nodeId("metropolis-c"),
          publicKey: keyOf(3),
          address: parseAddress("2001:db8::3"),
          prefixes: ["2001:db8::3/128"].map(parsePrefix),
        },
      ],
    },
  },
  parsePrivateKey(secret),
);
const dump = fixture("wg-dump.txt").replace(/^\S+/, secret);
/** The whole recording, and the few fields that are read of it: in those a damage hits one every time. */
const addresses = [
  fixture("ip-address.json"),
  '[{"ifindex":2,"ifname":"clusternet","flags":["UP"],"mtu":1420,"group":"9","linkinfo":{"info_kind":"tun"},"addr_info":[{"local":"10.192.1.1","prefixlen":24}]}]',
  '[{"ifindex":3,"ifname":"eth0","flags":["UP"],"mtu":1500,"group":"0","addr_info":[{"local":"192.0.2.1","prefixlen":24,"temporary":true},{"local":"192.0.2.2","prefixlen":25}]}]',
];
const routes = [fixture("ip-route-4.json"), fixture("ip-route-6.json")];
const stateText = `${JSON.stringify({
  version: 1,
  bootId: "b",
  loopbackAddresses: ["10.192.1.1", "fd10::1"],
  clusterNets: ["10.192.0.0/11", "fd10::/16"],
  interfaceName: "clusternet",
  listenPort: 7838,
  learnedCurators: [{ nodeId: "metropolis-b", address: "192.0.2.2:7835" }],
  podNetwork: { source: "Kubernetes Node n1", prefixes: ["10.192.1.0/24", "fd10::1/64"] },
})}\n`;

describe("what programs print:", () => {
  test("`wg show dump`, up to the status that is made of it", async () => {
    await holdToIt(damagedText([dump]), (text) => {
      const seen = parseWgDump(text);
      const status = buildStatus({
        version: "0",
        agent: { running: false, notReady: [] },
        node: { announced: [] },
        curator: noCurator,
        interfaceName: "clusternet",
        interface: {
          index: 2,
          name: "clusternet",
          implementation: "kernel",
          group: 9,
          mtu: 1420,
          up: true,
          ...seen,
        },
        mesh: { peers: [] },
        listenPort: 7838,
        problems: [],
        now: new Date(0),
      });
      return { seen, status };
    });
  });

  test("`wg show dump` in whatever pieces it comes, and whatever dump came before", async () => {
    const cuts = fc.array(fc.nat(300), { maxLength: 8 });
    await holdToIt(fc.tuple(damagedText([dump]), damagedText([dump]), cuts), ([first, text, lengths]) => {
      const before = outcomeOf(() => {
        const reader = new WgDumpReader();
        reader.push(Buffer.from(first));
        return reader.remember(SeenPeers.of(reader.finish().peers));
      });
      const read = outcomeOf(() => {
        const reader = new WgDumpReader(typeof before === "string" ? undefined : before);
        const bytes = Buffer.from(text);
        let from = 0;
        for (const length of lengths) reader.push(bytes.subarray(from, (from += length)));
        reader.push(bytes.subarray(from));
        return reader.finish();
      });
      expect(peersApart(read)).toEqual(peersApart(outcomeOf(() => parseWgDump(text))));
    });
  });

  test.each([
    {
      name: "links and addresses",
      samples: [...addresses, fixture("ip-link-group.json")],
      read: parseIpLinks,
    },
    { name: "routes of IPv4", samples: routes, read: (text: string) => parseIpRoutes(text, 4) },
    { name: "routes of IPv6", samples: routes, read: (text: string) => parseIpRoutes(text, 6) },
    {
      name: "devices, up to address and MTU chosen of them",
      samples: addresses,
      read: (text: string) => {
        const devices = parseDevices(text);
        const gateway = parseAddress("192.0.2.254");
        const defaultRoutes = [{ family: 4 as const, device: "eth0", gateway }];
        const underlay = { devices, defaultRoutes };
        const own = { clusterNets: [parsePrefix("10.192.0.0/11")], interfaceName: "clusternet" };
        return {
          devices,
          address: chooseExternalAddress(underlay, own, undefined)?.text,
          ...chooseMtu(underlay, own),
        };
      },
    },
    {
      name: "the route to the Curator",
      samples: [
        ...routes,
        '[{"dst":"192.0.2.9","gateway":"192.0.2.254","dev":"eth0","prefsrc":"192.0.2.1","flags":[],"uid":0,"cache":[]}]',
        '[{"dst":"default","metric":5,"flags":[],"nexthops":[{"gateway":"192.0.2.3","dev":"eth0","weight":1,"flags":["linkdown"]},{"via":{"host":"fe80::1"},"dev":"eth1"}]}]',
      ],
      read: (text: string) => parseRoute(text, 4),
    },
  ])("`ip -j`: $name", async ({ samples, read }) => {
    await holdToIt(damagedJson(samples), read, 2);
  });

  test("`ip -o monitor`: a line is a reason to look or none, and never a failure", async () => {
    const lines = fixture("ip-monitor.txt").split("\n");
    const networks = ["10.192.0.0/11"];
    const concern = { interfaceName: "clusternet", index: 2, networks, underlayDevices: ["v0"] };
    await holdToIt(damagedText(lines), (line) => {
      expect(Object.values(hintOf(line, concern)).map((each) => typeof each)).toEqual(["boolean", "boolean"]);
    });
  });

  test("/proc/net/unix: somebody listens or nobody does", async () => {
    await holdToIt(damagedText([fixture("proc-net-unix.txt")]), (text) => {
      expect(hasListener(text, "clusternet")).toBeBoolean();
    });
  });

  test("stderr of `wg`: the key in what it quotes is gone, whatever stands around it", async () => {
    const said = [
      `Line unrecognized: \`PrivatKey=${secret}'\nConfiguration parsing error\n`,
      `Key is not the correct length or format: \`${secret}'\n`,
      `Unable to parse ${secret}\n`,
    ];
    // Only around it: half of a key in a line of no known form cannot be told from any other word.
    const around = fc.string({ unit: "binary", maxLength: 30 });
    await holdToIt(fc.tuple(fc.constantFrom(...said), around, around), ([line, before, after]) => {
      expectNoneOf(redactKeys(`${before}\n${line}${after}`));
    });
  });
});

/** What comes of reading, or why nothing does. */
function outcomeOf<Value>(read: () => Value): Value | string {
  try {
    return read();
  } catch (error) {
    return messageOf(error);
  }
}

/** With the peers as a plain map, whatever keeps them, in the order of their keys. */
function peersApart(dump: WgDump | string): unknown {
  if (typeof dump === "string") return dump;
  return { ...dump, peers: [...dump.peers].toSorted(([a], [b]) => (a < b ? -1 : 1)) };
}

function expectNoneOf(text: string): void {
  expect([secret.slice(0, 14), secret.slice(14, 28)].filter((piece) => text.includes(piece))).toEqual([]);
}

describe("files of the data directory:", () => {
  test("the configuration file: what was read of it is written as it can be read again", async () => {
    await holdToIt(damagedText([config]), (text) => {
      const { privateKey, listenPort, nodes } = parseWgConfig(text);
      const claims = nodes.map((node) => judgeNode(node, rules));
      const { mesh, problems } = buildMesh({ claims, ownPrefixes: [], incumbents: noIncumbents });
      const again = parseWgConfig(renderWgConfig({ listenPort, mesh }, privateKey));
      expect(again.nodes.length).toBe(mesh.peers.length);
      return { nodes, problems };
    });
  });

  test("the last mesh is there, or unusable with a reason that tells nothing of the file", async () => {
    await holdToIt(
      damagedText([config]),
      async (text) => {
        const read = await new MeshFile(fileWith("m.conf", text)).read(parsePrivateKey(secret).publicKey);
        expect(["mesh", "unusable"]).toContain(read.kind);
        return read;
      },
      3,
    );
  });

  test("the key file", async () => {
    await holdToIt(
      damagedText([`${secret}\n`, secret]),
      async (text) => {
        const read = await readKeyFile(fileWith("private.key", text));
        return { publicKey: read?.key.publicKey, problems: read?.problems };
      },
      3,
    );
  });

  test("the state file is used or said to be of no use, in one line", async () => {
    await holdToIt(
      damagedJson([stateText]),
      async (text) => {
        const lines: string[] = [];
        const log = createLog({ format: "text", level: "debug" }, (line) => void lines.push(line));
        const state = await new StateFile(fileWith("m.state", text), "b").read(log);
        for (const line of lines) expectShowable(line.replace(/\n$/, ""));
        return {
          ...state,
          curators: state.learnedCurators.map((each) => rememberedCurator(each, state.clusterNets)),
        };
      },
      3,
    );
  });

  test("the database of our Curator is used, or refused and left as it is", async () => {
    const path = join(directory, "curator.db");
    const store = openSqliteStore(path);
    const node = {
      id: nodeId("a"),
      externalAddress: "192.0.2.1",
      reportedAtMs: 1,
      status: statusBytes("192.0.2.1"),
      publicKey: keyOf(1),
      prefixes: ["10.192.1.0/24"],
    };
    store.commit(
      [
        { kind: "put", node },
        { kind: "use-key", publicKey: keyOf(1), id: node.id },
        { kind: "remove", id: nodeId("gone") },
        { kind: "allow", id: nodeId("back") },
      ],
      () => ({ nodes: [], keys: new Map(), removed: new Set(), allowed: new Set() }),
    );
    store.close();
    const good = readFileSync(path);
    await holdToIt(
      damagedBytes([good]),
      (bytes) => {
        fileWith("damaged.db", bytes);
        try {
          using opened = new Opened(join(directory, "damaged.db"));
          return opened.store.load();
        } finally {
          for (const ending of ["-wal", "-shm"]) rmSync(`${directory}/damaged.db${ending}`, { force: true });
        }
      },
      15,
    );
  });
});

/** A store that is closed whatever comes of reading it. */
class Opened implements Disposable {
  readonly store: ReturnType<typeof openSqliteStore>;

  constructor(path: string) {
    this.store = openSqliteStore(path);
  }

  [Symbol.dispose](): void {
    this.store.close();
  }
}

describe("certificates and keys:", () => {
  let trust: TestTrust;
  beforeAll(() => {
    trust = new TestTrust();
  });
  afterAll(() => trust[Symbol.dispose]());

  test("the three files of a node, each damaged", async () => {
    const files = trust.files("a");
    const texts = Object.values(files).map((path) => readFileSync(path, "utf8"));
    const keyText = readFileSync(files.key, "utf8").split("\n")[1] ?? "none";
    const which = fc.constantFrom("ca" as const, "cert" as const, "key" as const);
    await holdToIt(
      fc.tuple(which, damagedText(texts)),
      async ([name, text]) => {
        const path = fileWith(`${name}.pem`, text);
        try {
          const { nodeId, certificate } = await readCredentials({ ...files, [name]: path });
          return { nodeId, serial: certificate.serialNumber };
        } catch (error) {
          expect(messageOf(error)).not.toContain(keyText.slice(0, 20));
          throw error;
        }
      },
      5,
    );
  });

  test("a certificate from the other side, damaged inside", async () => {
    const others = impostors(trust.ca).map(({ certificate }) => certificate);
    const all = [new X509Certificate(readFileSync(trust.files("a").cert)), trust.ca.certificate, ...others];
    await holdToIt(
      damagedBytes(all.map(({ raw }) => raw)),
      (bytes) => {
        let sent: X509Certificate;
        try {
          sent = new X509Certificate(bytes);
        } catch {
          // What the TLS library cannot read never comes as far as our judgement.
          return undefined;
        }
        const options = { ca: trust.ca.certificate, now: new Date() };
        return [
          judgeCertificates([sent], options),
          judgeCertificates([sent, trust.ca.certificate], options),
          judgeCertificates([others[0] ?? sent, sent], options),
        ];
      },
      5,
    );
  });
});

describe("what a Curator sends, before and after it is decoded:", () => {
  const recorded = (watchFixture.steps as unknown as readonly RecordedStep[])
    .flatMap(({ events = [] }) => events)
    .map(({ base64 }) => Uint8Array.fromBase64(base64));

  test("there are recordings to damage", () => {
    expect(recorded.length).toBeGreaterThan(10);
  });

  test("WatchEvent, up to the mesh that is made of it", async () => {
    await holdToIt(
      damagedBytes(recorded),
      (bytes) => {
        let event: WatchEvent;
        try {
          event = WatchEvent.decode(bytes);
        } catch (error) {
          // gRPC hands this on as INTERNAL, with these words (calls.test.ts).
          expectShowable(messageOf(error));
          return undefined;
        }
        const decoded = decodeWatchEvent(event, nodeId("a"));
        const claims = decoded.nodes.map((node) => judgeNode(node, rules));
        const { mesh, problems } = buildMesh({ claims, ownPrefixes: [], incumbents: noIncumbents });
        const text = renderWgConfig({ listenPort: 7838, mesh }, parsePrivateKey(secret));
        expect(parseWgConfig(text).nodes.length).toBe(mesh.peers.length);
        for (const message of decoded.ended ?? []) expectShowable(message);
        return { decoded, problems };
      },
      2,
    );
  });

  test("who leads", async () => {
    const texts = damagedText(["metropolis-b", "192.0.2.2", "2001:db8::2", "", "curator.example"]);
    const answer = fc.record({
      leaderNodeId: texts,
      leaderHost: texts,
      leaderPort: fc.oneof(fc.integer(), fc.constantFrom(7835, 0, 65_536)),
      thisNodeId: texts,
    });
    await holdToIt(answer, (each) => {
      const address = leaderAddress(each, [parsePrefix("10.192.0.0/11")]);
      if (address !== undefined) expect(address).toMatch(/^(?:[0-9.]+|\[[0-9a-f:.]+\]):[1-9][0-9]*$/);
    });
  });

  test("keys, addresses and prefixes as texts", async () => {
    const texts = damagedText([keyOf(1), "192.0.2.1", "2001:db8::1", "10.192.1.0/24", "fd10::/64"]);
    for (const parse of [parsePublicKey, parseAddress, parsePrefix]) {
      await fc.assert(
        fc.asyncProperty(texts, async (text) => {
          const parsed = await readOnce(() => {
            const value = parse(text);
            return typeof value === "string" ? undefined : { text: value.text };
          });
          if (parsed !== undefined) expectShowable(parsed.text);
        }),
        { numRuns: runsOf(2) },
      );
    }
  });
});

interface RecordedStep {
  readonly events?: readonly { readonly base64: string }[];
}
