/**
 * The status for people: problems first, then this node, then a line for every peer.
 *
 * Everything is one line each and aligned as all tables are (table.ts), which also escapes whatever a terminal would
 * obey: text in a status can come from a file or another program's answer.
 */
import type { Status, StatusPeer } from "./status.ts";
import { ago, alignColumns, renderList } from "./table.ts";

export interface StatusTextOptions {
  readonly now: Date;
  /** For a terminal: problems stand out. */
  readonly color: boolean;
}

/** The whole text, with its last line end. */
export function renderStatus(status: Status, options: StatusTextOptions): string {
  const blocks = [
    problemLines(status, options),
    factLines(status, options.now),
    peerLines(status.peers, options.now),
  ];
  return blocks
    .filter((lines) => lines.length > 0)
    .map((lines) => `${lines.join("\n")}\n`)
    .join("\n");
}

function problemLines({ problems }: Status, { now, color }: StatusTextOptions): string[] {
  if (problems.length === 0) return [];
  const [on, off] = color ? ["\u001b[1;31m", "\u001b[0m"] : ["", ""];
  const rows = problems.map(({ kind, nodeId, since, message }) => [
    kind,
    nodeId ?? "-",
    since === null ? "-" : ago(since, now),
    message,
  ]);
  return [`${on}problems: ${problems.length}${off}`, ...alignColumns(rows).map((line) => `  ${line}`)];
}

function factLines(status: Status, now: Date): string[] {
  const { agent, node, interface: link } = status;
  const isAnswering = isOfAgent(status);
  const since = (time: string | null, word = "since"): string | null =>
    time === null ? null : `${word} ${time} (${ago(time, now)})`;
  const rows = [
    [
      "agent:",
      agent.running
        ? joined([
            isAnswering ? (agent.ready ? "ready" : "not ready") : "does not answer",
            isAnswering && agent.unhealthy.length > 0 ? "unhealthy" : null,
            agent.pid === null ? null : `process ${agent.pid}`,
            since(agent.startedAt),
            isAnswering ? `version ${status.version}` : null,
          ])
        : agent.running === null
          ? "unknown"
          : "not running",
    ],
    ...[...agent.reasons, ...agent.unhealthy].map((reason) => ["", reason]),
    ["node:", node.id ?? "unknown"],
    ["public key:", node.publicKey ?? "unknown"],
    ["address:", node.externalAddress ?? "unknown"],
    ["announced:", announcedText(status, now)],
    ["curator:", joined([curatorText(status), since(status.curator.since), lastEventText(status, now)])],
    ["mesh:", meshText(status, now)],
    [
      "interface:",
      joined([
        link.name,
        link.implementation ?? (link.present === false ? "absent" : "unknown: it could not be looked at"),
        link.listenPort === null ? null : `port ${link.listenPort}`,
        link.mtu === null ? null : `MTU ${link.mtu}`,
        link.implementation === null ? null : link.up ? "up" : "down",
      ]),
    ],
    ["peers:", countText(status.peers)],
  ];
  return alignColumns(rows);
}

/** What is known of it, in one line. */
function joined(texts: readonly (string | null)[]): string {
  return texts.filter((text) => text !== null).join(", ");
}

function announcedText({ node }: Status, now: Date): string {
  const { announced, announcedAt, removed } = node;
  if (removed === true) return "nothing: this node was removed from the cluster";
  if (announced === null) return "unknown: no agent could be asked";
  if (announced.length === 0) return "nothing";
  return `${announced.join(", ")}${announcedAt === null ? "" : ` (${ago(announcedAt, now)})`}`;
}

/** True when an agent gave it, which knows what it has announced; else nobody could be asked. */
function isOfAgent({ node }: Status): boolean {
  return node.announced !== null;
}

function curatorText(status: Status): string {
  const { state, address, fullPicture } = status.curator;
  if (!isOfAgent(status)) return "unknown: no agent could be asked";
  if (state === "none") return "none";
  if (state === "connecting") return address === null ? "connecting" : `connecting to ${address}`;
  return `connected to ${address ?? "?"}, ${fullPicture ? "full picture" : "no full picture yet"}`;
}

function lastEventText({ curator }: Status, now: Date): string | null {
  return curator.lastEventAt === null ? null : `last event ${ago(curator.lastEventAt, now)}`;
}

function meshText({ source, sourceAt }: Status, now: Date): string {
  if (source === null) return "none";
  const from = source === "file" ? "from the file" : "from the Curator";
  return sourceAt === null ? from : `${from}, as of ${sourceAt} (${ago(sourceAt, now)})`;
}

function countText(peers: readonly StatusPeer[]): string {
  const count = (state: StatusPeer["state"]): number => peers.filter((peer) => peer.state === state).length;
  return peers.length === 0
    ? "none"
    : `${peers.length} (${count("connected")} connected, ${count("idle")} idle, ${count("never")} never)`;
}

function peerLines(peers: readonly StatusPeer[], now: Date): string[] {
  if (peers.length === 0) return [];
  const heading = ["NODE", "STATE", "HANDSHAKE", "RECEIVED", "SENT", "ENDPOINT", "PUBLIC KEY", "PREFIXES"];
  return alignColumns([
    heading,
    ...peers.map((peer) => [
      peer.id ?? "-",
      peer.state,
      peer.latestHandshakeAt === null ? "-" : ago(peer.latestHandshakeAt, now),
      bytes(peer.receivedBytes),
      bytes(peer.sentBytes),
      peer.endpoint ?? "-",
      peer.publicKey,
      renderList(peer.prefixes),
    ]),
  ]);
}

function bytes(count: number): string {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let value = count;
  let index = 0;
  while (value >= 1024 && index < names.length - 1) {
    value /= 1024;
    index++;
  }
  return `${index === 0 ? value : value.toFixed(1)} ${names[index]}`;
}
