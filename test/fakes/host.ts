/**
 * A host that behaves like a host: it takes the words of `ip` and `wg`, keeps what they change, and does what the
 * kernel does beside it. A prefix that is given to a second peer leaves the first; a link that goes down or away takes
 * its routes along; an IPv4 route goes with its source address and an IPv6 one loses it; only a link that is down can
 * be renamed. It has the kernel's WireGuard and refuses every command that it does not know.
 */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parsePrivateKey, type PublicKey } from "../../src/core/key.ts";
import { containsPrefix, parseAddress, parsePrefix } from "../../src/core/prefix.ts";
import { renderEndpoint } from "../../src/core/wg-config.ts";
import { parseWgConfig } from "../../src/core/wg-config-reader.ts";
import { CommandError } from "../../src/errors.ts";
import type { RunCommand } from "../../src/host/command.ts";
import { createHost, type HostOptions, type LinuxHost } from "../../src/host/host.ts";
import type { HostMemory, HostRemembers } from "../../src/host/ownership.ts";
import { silentLogger } from "../../src/log.ts";

interface FakePeer {
  endpoint: string;
  allowedIps: string[];
  keepalive: number;
  preshared: boolean;
  handshake: number;
  received: number;
}

interface FakeLink {
  index: number;
  kind: string;
  group: number;
  mtu: number;
  up: boolean;
  publicKey: PublicKey | undefined;
  port: number;
  fwmark: number;
  peers: Map<string, FakePeer>;
}

/** A route of the main table. */
export interface FakeRoute {
  type: "unicast" | "unreachable";
  network: string;
  device: string;
  protocol: number;
  metric: number;
  src: string;
}

/** What to do with a changing command: carry it out, refuse it, or carry it out and say that it failed. */
export type Fate = "done" | "refused" | "done but failed";

export class FakeHost {
  readonly links = new Map<string, FakeLink>();
  routes: FakeRoute[] = [];
  /** Addresses on `lo`, without length. */
  loopback = ["127.0.0.1", "::1"];
  /** UDP ports that somebody else holds. */
  readonly takenPorts = new Set<number>();
  /** What `wg` says of an interface that is not there. */
  missingInterface = "Unable to access interface: No such device";
  /** Every command that was to change something. */
  readonly changes: string[] = [];
  /** How many commands only looked. */
  reads = 0;
  /** What becomes of the next changing command. */
  fate: (command: string) => Fate = () => "done";
  /** What others do in the same instant: called when a command has looked or changed, before its answer is known. */
  beside: (command: string) => void = () => {};
  version = "wireguard-tools v1.0.20210914 - https://git.zx2c4.com/wireguard-tools/\n";
  #nextIndex = 2;

  readonly run: RunCommand = (argv) => Promise.resolve().then(() => this.#execute(argv));

  link(name: string): FakeLink {
    const link = this.links.get(name);
    if (link === undefined) throw new Error(`the fake host has no link ${name}`);
    return link;
  }

  addLink(name: string, kind: string, change: Partial<FakeLink> = {}): FakeLink {
    const link: FakeLink = {
      index: this.#nextIndex++,
      kind,
      group: 0,
      mtu: 1500,
      up: false,
      publicKey: undefined,
      port: 0,
      fwmark: 0,
      peers: new Map(),
      ...change,
    };
    this.links.set(name, link);
    return link;
  }

  #execute(argv: readonly string[]): string {
    const command = argv.join(" ");
    const reading = this.#read(argv);
    if (reading !== undefined) {
      this.reads++;
      this.beside(command);
      return reading;
    }
    this.changes.push(command);
    const fate = this.fate(command);
    if (fate === "refused") throw refuse(argv, "injected");
    if (argv[0] === "wg" && argv[1] === "syncconf") this.#wgSyncconf(argv);
    else if (argv[0] === "wg") this.#wgSet(argv);
    else if (argv[0] === "ip") this.#ip(argv);
    else throw new Error(`the fake host does not know "${command}"`);
    this.beside(command);
    if (fate === "done but failed") throw refuse(argv, "injected, after it was done");
    return "";
  }

  #read(argv: readonly string[]): string | undefined {
    const command = argv.join(" ");
    if (command === "wg --version") return this.version;
    if (command === "ip -N -j -d address show") return JSON.stringify(this.#addresses());
    const route = /^ip -N -j -d (?:-6 )?route show table main root (\S+)$/.exec(command);
    if (route !== null) {
      const asked = parsePrefix(route[1] ?? "");
      const inside = this.routes.filter(({ network }) => containsPrefix(asked, parsePrefix(network)));
      return JSON.stringify(inside.map(routeJson));
    }
    const ours = /^ip -N -j -([46]) route show table main proto (\d+)$/.exec(command);
    if (ours !== null) {
      const found = this.routes.filter(
        ({ network, protocol }) =>
          network.includes(":") === (ours[1] === "6") && protocol === Number(ours[2]),
      );
      return JSON.stringify(found.map(routeJson));
    }
    const shown = /^wg show (\S+) dump$/.exec(command)?.[1];
    return shown === undefined ? undefined : this.#dump(argv, shown);
  }

  #addresses(): unknown[] {
    const lo = {
      ifindex: 1,
      ifname: "lo",
      flags: ["LOOPBACK", "UP"],
      mtu: 65_536,
      group: "0",
      addr_info: this.loopback.map((local) => ({ local })),
    };
    const links = [...this.links].map(([ifname, link]) => ({
      ifindex: link.index,
      ifname,
      flags: link.up ? ["UP"] : [],
      mtu: link.mtu,
      group: String(link.group),
      linkinfo: { info_kind: link.kind },
      addr_info: [],
    }));
    // As `ip -j` does for a link that it leaves out.
    return [lo, {}, ...links];
  }

  #dump(argv: readonly string[], name: string): string {
    const link = this.links.get(name);
    if (link?.kind !== "wireguard") throw refuse(argv, this.missingInterface);
    const own = link.publicKey ?? "(none)";
    const mark = link.fwmark === 0 ? "off" : `0x${link.fwmark.toString(16)}`;
    const lines = [...link.peers].map(([key, peer]) =>
      [
        key,
        peer.preshared ? "PSK" : "(none)",
        peer.endpoint === "" ? "(none)" : peer.endpoint,
        peer.allowedIps.length === 0 ? "(none)" : peer.allowedIps.join(","),
        peer.handshake,
        peer.received,
        0,
        peer.keepalive === 0 ? "off" : peer.keepalive,
      ].join("\t"),
    );
    return [`PRIVATE\t${own}\t${link.port}\t${mark}`, ...lines, ""].join("\n");
  }

  #ip(argv: readonly string[]): void {
    const words = argv.slice(1);
    const family = words[0] === "-4" || words[0] === "-6" ? words.shift() : undefined;
    const [object = "", verb = "", ...rest] = words;
    if (object === "link") this.#ipLink(argv, verb, rest);
    else if (object === "address") this.#ipAddress(argv, verb, rest);
    else if (object === "route" && family !== undefined) this.#ipRoute(argv, verb, rest);
    else throw new Error(`the fake host does not know "${argv.join(" ")}"`);
  }

  #ipLink(argv: readonly string[], verb: string, rest: readonly string[]): void {
    const name = valueOf(rest, "dev") ?? "";
    const known = this.links.get(name);
    if (verb === "add") {
      if (known !== undefined) throw refuse(argv, "RTNETLINK answers: File exists");
      this.addLink(name, valueOf(rest, "type") ?? "", {
        mtu: Number(valueOf(rest, "mtu") ?? 1420),
        group: Number(valueOf(rest, "group") ?? 0),
      });
      return;
    }
    if (known === undefined) throw refuse(argv, `Cannot find device "${name}"`);
    if (verb === "delete") {
      this.links.delete(name);
      this.#dropRoutes((route) => route.device === name);
      return;
    }
    const next = valueOf(rest, "name");
    if (next !== undefined) {
      if (known.up) throw refuse(argv, "RTNETLINK answers: Device or resource busy");
      if (this.links.has(next)) throw refuse(argv, "RTNETLINK answers: File exists");
      this.links.delete(name);
      this.links.set(next, known);
    }
    known.group = Number(valueOf(rest, "group") ?? known.group);
    known.mtu = Number(valueOf(rest, "mtu") ?? known.mtu);
    if (known.mtu < 1280) this.#dropRoutes((route) => route.device === name && route.network.includes(":"));
    if (rest.includes("down")) {
      known.up = false;
      this.#dropRoutes((route) => route.device === name);
    }
    if (rest.includes("up")) {
      if (this.takenPorts.has(known.port)) throw refuse(argv, "RTNETLINK answers: Address already in use");
      known.up = true;
    }
  }

  #ipAddress(argv: readonly string[], verb: string, [prefix = "", ...rest]: readonly string[]): void {
    if (!/^dev lo( nodad)?$/.test(rest.join(" "))) throw new Error("the fake host has addresses on lo alone");
    const address = prefix.replace(/\/(32|128)$/, "");
    const there = this.loopback.includes(address);
    if (verb === "add") {
      if (there) throw refuse(argv, "Error: ipv4: Address already assigned.");
      this.loopback.push(address);
      return;
    }
    if (!there) throw refuse(argv, "Error: ipv4: Address not found.");
    this.loopback = this.loopback.filter((each) => each !== address);
    this.#dropRoutes((route) => route.src === address && !address.includes(":"));
    for (const route of this.routes) if (route.src === address) route.src = "";
  }

  #ipRoute(argv: readonly string[], verb: string, rest: readonly string[]): void {
    const unreachable = rest[0] === "unreachable";
    const network = (unreachable ? rest[1] : rest[0]) ?? "";
    const route: FakeRoute = {
      type: unreachable ? ("unreachable" as const) : ("unicast" as const),
      network,
      device: valueOf(rest, "dev") ?? "",
      protocol: Number(valueOf(rest, "proto") ?? 3),
      metric: Number(valueOf(rest, "metric") ?? (network.includes(":") ? 1024 : 0)),
      src: valueOf(rest, "src") ?? "",
    };
    const before = this.routes.find((each) => each.network === network && each.metric === route.metric);
    if (verb === "delete") {
      const same = before?.device === route.device && before.protocol === route.protocol;
      if (!same || before.type !== route.type) throw refuse(argv, "RTNETLINK answers: No such process");
      this.routes = this.routes.filter((each) => each !== before);
      return;
    }
    if (!unreachable && this.links.get(route.device)?.up !== true) {
      throw refuse(argv, "Error: Nexthop device is not up.");
    }
    if (route.src !== "" && !this.loopback.includes(route.src))
      throw refuse(argv, "Error: Invalid source address.");
    if (before !== undefined && verb === "add") throw refuse(argv, "RTNETLINK answers: File exists");
    this.routes = [...this.routes.filter((each) => each !== before), route];
  }

  #dropRoutes(gone: (route: FakeRoute) => boolean): void {
    this.routes = this.routes.filter((route) => !gone(route));
  }

  #wgSet(argv: readonly string[]): void {
    const [, verb, name = "", ...words] = argv;
    if (verb !== "set") throw new Error(`the fake host does not know "${argv.join(" ")}"`);
    const link = this.links.get(name);
    if (link?.kind !== "wireguard") throw refuse(argv, "Unable to modify interface: No such device");
    const owners = new Map<string, FakePeer>();
    for (const peer of link.peers.values()) for (const text of peer.allowedIps) owners.set(text, peer);
    let key: string | undefined;
    while (words.length > 0) {
      const word = words.shift();
      const value = word === "remove" ? "" : (words.shift() ?? "");
      if (word === "private-key") link.publicKey = parsePrivateKey(readFileSync(value, "utf8")).publicKey;
      else if (word === "listen-port") this.#listen(argv, link, Number(value));
      else if (word === "peer") key = value;
      else if (key === undefined) throw new Error(`the fake host does not know "${argv.join(" ")}"`);
      else this.#wgPeer(link, owners, { key, word: word ?? "", value });
      if (key !== undefined && word === "peer" && !link.peers.has(key)) link.peers.set(key, newPeer());
    }
  }

  /** Everything as the file says; a fwmark that it does not name goes. */
  #wgSyncconf(argv: readonly string[]): void {
    const [, , name = "", file = ""] = argv;
    const link = this.links.get(name);
    if (link?.kind !== "wireguard") throw refuse(argv, "Unable to modify interface: No such device");
    const { privateKey, listenPort, nodes } = parseWgConfig(readFileSync(file, "utf8"));
    link.publicKey = privateKey.publicKey;
    link.fwmark = 0;
    this.#listen(argv, link, listenPort);
    const before = link.peers;
    link.peers = new Map();
    for (const { publicKey, externalAddress, prefixes } of nodes) {
      const peer = before.get(publicKey) ?? newPeer();
      const address = externalAddress === "" ? undefined : parseAddress(externalAddress);
      if (address !== undefined) peer.endpoint = renderEndpoint(address, listenPort);
      peer.allowedIps = [...prefixes];
      link.peers.set(publicKey, peer);
    }
  }

  #listen(argv: readonly string[], link: FakeLink, port: number): void {
    if (link.up && this.takenPorts.has(port)) {
      throw refuse(argv, "Unable to modify interface: Address already in use");
    }
    link.port = port;
  }

  #wgPeer(
    link: FakeLink,
    owners: Map<string, FakePeer>,
    { key, word, value }: { readonly key: string; readonly word: string; readonly value: string },
  ): void {
    if (word === "remove") {
      link.peers.delete(key);
      return;
    }
    const peer = link.peers.get(key) ?? newPeer();
    if (word === "endpoint") peer.endpoint = value;
    else if (word === "persistent-keepalive") peer.keepalive = Number(value);
    else if (word === "preshared-key" && value === "/dev/null") peer.preshared = false;
    else if (word === "allowed-ips") {
      const plus = value.startsWith("+");
      if (plus && !this.version.includes("v1.0.2026")) throw new Error("this wg does not know +");
      const given = value === "" ? [] : value.split(",").map((text) => text.replace(/^\+/, ""));
      for (const text of given) {
        const other = owners.get(text);
        if (other !== undefined && other !== peer) {
          other.allowedIps = other.allowedIps.filter((each) => each !== text);
        }
        owners.set(text, peer);
      }
      peer.allowedIps = plus ? [...new Set([...peer.allowedIps, ...given])] : given;
      // The kernel would mask it and keep it; no text of ours may need that.
      for (const text of given) parsePrefix(text);
    } else throw new Error(`the fake host does not know "${word}" of a peer`);
  }

  /** Everything there is, as text in a fixed order. */
  show(): string {
    const links = [...this.links].map(([name, link]) => {
      const { kind, group, mtu, up, publicKey, port, fwmark } = link;
      const peers = [...link.peers].map(
        ([key, peer]) =>
          `  ${key} ${peer.endpoint} [${peer.allowedIps.toSorted().join(" ")}] ${peer.keepalive} ${peer.preshared}`,
      );
      const line = `${name}: ${kind} group ${group} mtu ${mtu} up ${up} key ${publicKey} port ${port} mark ${fwmark}`;
      return [line, ...peers.toSorted()].join("\n");
    });
    const routes = this.routes.map((route) => Object.values(route).join(" "));
    return [...links.toSorted(), ...this.loopback.toSorted(), ...routes.toSorted()].join("\n");
  }
}

function newPeer(): FakePeer {
  return { endpoint: "", allowedIps: [], keepalive: 0, preshared: false, handshake: 0, received: 0 };
}

function valueOf(words: readonly string[], name: string): string | undefined {
  const at = words.indexOf(name);
  return at === -1 ? undefined : words[at + 1];
}

function routeJson({ type, network, device, protocol, metric, src }: FakeRoute): unknown {
  return {
    ...(type === "unreachable" ? { type: "7" } : {}),
    dst: network,
    protocol: String(protocol),
    metric,
    flags: [],
    ...(device === "" ? {} : { dev: device }),
    ...(src === "" ? {} : { prefsrc: src }),
  };
}

function refuse(argv: readonly string[], stderr: string): CommandError {
  return new CommandError(`Cannot run "${argv.join(" ")}": exit code 1: ${stderr}`, {
    argv,
    exitCode: 1,
    stderr,
  });
}

/** A memory that lives as long as the test. */
export class FakeMemory implements HostMemory {
  current: HostRemembers = { loopbackAddresses: [], clusterNets: [] };
  writes = 0;

  get(): HostRemembers {
    return this.current;
  }

  set(next: HostRemembers): Promise<void> {
    this.current = next;
    this.writes++;
    return Promise.resolve();
  }
}

/** The real host over this fake one, with its files in `directory`. */
export function createHostOn(
  fake: FakeHost,
  {
    directory,
    ...parts
  }: { readonly directory: string } & Pick<HostOptions, "memory" | "clock"> & Partial<HostOptions>,
): LinuxHost {
  return createHost({
    run: fake.run,
    follow: () => {
      throw new Error("nothing to follow");
    },
    interfaceName: "clusternet",
    keyFile: join(directory, "private.key"),
    configFile: join(directory, "clusternet.conf"),
    wireguard: "auto",
    ourKeys: new Set(),
    log: silentLogger,
    find: (name) => `/usr/bin/${name}`,
    readUnixSockets: () => Promise.resolve(""),
    ...parts,
  });
}
