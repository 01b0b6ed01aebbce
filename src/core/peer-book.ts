/**
 * The book of the peers that this program has set since it started: which they are (C4.8), and to which endpoints (C4.6).
 *
 * A command that failed may have done its work all the same, so what it was to set counts as perhaps set until an apply
 * succeeds. Nothing here grows while nothing succeeds.
 */
import {
  announcedEndpoint,
  type EndpointMemory,
  type SeenHost,
  type Step,
  type WantedHost,
} from "./host-state.ts";
import type { PublicKey } from "./key.ts";
import { findPeer, type Peer } from "./mesh.ts";

/** So many endpoints of a peer are known as tried; one that changes its address all the time must not fill the memory. */
const maxTried = 4;

export class PeerBook {
  #starting = true;
  /** The peers whose endpoints were last set or found right. */
  #right: Pick<WantedHost, "peers" | "listenPort"> = { peers: [], listenPort: 0 };
  /** Endpoints that commands which failed since then were to set. */
  #tried: ReadonlyMap<PublicKey, ReadonlySet<string>> = new Map();
  /** Peers that were wanted when all was last done, and keys of those wanted since then that may be there. */
  #donePeers: readonly Peer[] = [];
  #begunPeers: ReadonlySet<PublicKey> = new Set();

  /** Keys of peers that are on the interface because this program wanted them. */
  formerPeers(): ReadonlySet<PublicKey> {
    return new Set([...this.#donePeers.map((peer) => peer.publicKey), ...this.#begunPeers]);
  }

  endpoints(): Pick<EndpointMemory, "starting" | "announced" | "tried"> {
    const right = this.#right;
    return {
      starting: this.#starting,
      announced: (peer) => announcedBefore(right, peer),
      tried: this.#tried,
    };
  }

  /** Notes an apply that was carried out but for the steps `left`; `before`: the host as it was before. */
  note(wanted: WantedHost, before: SeenHost, left: readonly Step[]): void {
    const unset = left.filter(({ kind }) => kind === "set-peers" || kind === "sync-conf");
    if (unset.length > 0) this.#doubtEndpoints(unset, wanted);
    else this.#learnEndpoints(wanted);
    if (left.length > 0) {
      this.noteBegun(wanted, before);
      return;
    }
    // Whoever was not wanted any more is gone now.
    this.#donePeers = wanted.peers;
    this.#begunPeers = new Set();
  }

  /** What was wanted may be there in part. Of before only what still is: while nothing succeeds, keys must not add up. */
  noteBegun(wanted: WantedHost, { interface: link }: SeenHost): void {
    const there = [...this.#begunPeers].filter((key) => link?.peers.has(key) === true);
    this.#begunPeers = new Set([...there, ...wanted.peers.map((peer) => peer.publicKey)]);
  }

  #learnEndpoints({ peers, listenPort }: WantedHost): void {
    this.#starting = false;
    this.#tried = new Map();
    this.#right = { peers, listenPort };
  }

  /** What a command that failed may have set all the same: an endpoint found so has not roamed. */
  #doubtEndpoints(unset: readonly Step[], wanted: WantedHost): void {
    const wantedKeys = new Set(wanted.peers.map((peer) => peer.publicKey));
    const tried = new Map([...this.#tried].filter(([publicKey]) => wantedKeys.has(publicKey)));
    for (const step of unset) {
      const changes =
        step.kind === "set-peers"
          ? step.changes
          : wanted.peers.map((peer) => ({ ...peer, endpoint: announcedEndpoint(peer, wanted.listenPort) }));
      for (const { publicKey, endpoint } of changes) {
        if (endpoint === undefined) continue;
        const before = tried.get(publicKey) ?? new Set();
        tried.set(publicKey, new Set([...before, endpoint].slice(-maxTried)));
      }
    }
    this.#tried = tried;
  }
}

/** The endpoint by which the key of a peer was announced then, perhaps by another node. */
function announcedBefore(
  { peers, listenPort }: Pick<WantedHost, "peers" | "listenPort">,
  { nodeId, publicKey }: Peer,
): string | undefined {
  const ofNode = findPeer({ peers }, nodeId);
  const before =
    ofNode?.publicKey === publicKey ? ofNode : peers.find((peer) => peer.publicKey === publicKey);
  return before === undefined ? undefined : announcedEndpoint(before, listenPort);
}
