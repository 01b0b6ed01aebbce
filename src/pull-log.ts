/**
 * What the log is told of the mesh: one line a peer that came, went or changed, once it holds, and one line a stream when
 * all that its Curator knows holds.
 */
import type { Clock } from "./async.ts";
import type { Mesh } from "./core/mesh.ts";
import { diffMeshes } from "./core/mesh-changes.ts";
import type { Logger } from "./log.ts";

/** So many changed peers are logged singly in a minute; of a cluster in which nodes change all the time the rest is counted. */
const loggedSingly = 60;
const loggedWindowMs = 60_000;

export class PullLog {
  readonly #log: Logger;
  readonly #clock: Clock;
  /** The mesh that the log knows of. */
  #told: Mesh = { peers: [] };
  /** The stream whose whole picture the log says to hold. */
  #toldStream = 0;
  /** How much was told in this minute. */
  #tellingSinceMs = 0;
  #toldSingly = 0;
  #untold = 0;

  constructor(log: Logger, clock: Clock) {
    this.#log = log;
    this.#clock = clock;
  }

  tellFile(mesh: Mesh, writtenAt: Date): void {
    this.#told = mesh;
    this.#log.info("Starting from the last file", {
      peers: mesh.peers.length,
      writtenAt: writtenAt.toISOString(),
    });
  }

  /** The interface holds all that the Curator of this stream knows, and nothing else. */
  tellInStep(stream: number, peers: number): void {
    if (stream === this.#toldStream) return;
    this.#toldStream = stream;
    this.#log.info("In step with the Curator", { peers });
  }

  /** This mesh holds. Of many changes in a minute the first ones are told, and later a count. */
  tellChanges(mesh: Mesh): void {
    const changes = diffMeshes(this.#told, mesh);
    this.#told = mesh;
    const nowMs = this.#clock.nowMs();
    if (nowMs - this.#tellingSinceMs >= loggedWindowMs) {
      if (this.#untold > 0) this.#log.info("More peers changed", { count: this.#untold });
      this.#tellingSinceMs = nowMs;
      this.#toldSingly = 0;
      this.#untold = 0;
    }
    const singly = changes.slice(0, Math.max(0, loggedSingly - this.#toldSingly));
    this.#toldSingly += singly.length;
    this.#untold += changes.length - singly.length;
    for (const { kind, peer } of singly) {
      this.#log.info(`Peer ${kind}`, {
        node: peer.nodeId,
        publicKey: peer.publicKey,
        address: peer.address?.text,
        prefixes: peer.prefixes.map((each) => each.text).join(" "),
      });
    }
  }
}
