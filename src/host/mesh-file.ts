/**
 * The file `<interface>.conf`: the whole mesh in the form `wg setconf` reads, and the last known good mesh of the
 * next start (C3).
 *
 * A file that cannot be used is a problem and never stops the start: it is left alone until the next believed picture
 * is written over it. No message shows any of its content, since it holds the private key.
 */
import { giveWay } from "../async.ts";
import type { PublicKey } from "../core/key.ts";
import type { Node } from "../core/node.ts";
import { quotePath, type Problem } from "../core/problem.ts";
import { type ParsedWgConfig, parseWgConfigInSteps } from "../core/wg-config-reader.ts";
import { ClusternetError, messageOf } from "../errors.ts";
import { KeptFile, modeProblems, type Content, type Kept, type LookOptions } from "./files.ts";

/** 10,000 nodes of 64 prefixes with addresses of IPv6 have 35 MB. */
const maxMeshFileBytes = 128 * 1024 * 1024;

export type LastMesh =
  | { readonly kind: "none" }
  | {
      readonly kind: "mesh";
      /** To be judged like any other nodes: what the file says is not believed further than what a Curator says. */
      readonly nodes: readonly Node[];
      readonly listenPort: number;
      readonly publicKey: PublicKey;
      /** When the file was written. */
      readonly writtenAt: Date;
      /** `key-mode`: others could read the file. */
      readonly problems: readonly Problem[];
    }
  | {
      readonly kind: "unusable";
      /** Key of the file when only that is wrong: an interface that has it is ours all the same (C4.11). */
      readonly publicKey?: PublicKey;
      /** `source-failed` and, when others could read the file, `key-mode`. */
      readonly problems: readonly Problem[];
    };

/** While a large file is parsed programs are waited for that read this host, and a connection is made. */
async function parseGivingWay(text: string): Promise<ParsedWgConfig> {
  const steps = parseWgConfigInSteps(text);
  for (;;) {
    const step = steps.next();
    if (step.done === true) return step.value;
    await giveWay();
  }
}

/** The file of one interface. Knows what it last read or wrote, so that nothing is written twice. */
export class MeshFile {
  readonly path: string;
  readonly #file: KeptFile;

  constructor(path: string) {
    this.path = path;
    this.#file = new KeptFile(path);
  }

  /** Reads the last mesh. With `ownKey`, one written for another key is unusable. Never throws for what the file holds. */
  async read(ownKey?: PublicKey, options: LookOptions = {}): Promise<LastMesh> {
    let modes: readonly Problem[] = [];
    try {
      const file = await this.#file.read(maxMeshFileBytes, options);
      if (file === undefined) return { kind: "none" };
      modes = modeProblems(`Mesh file ${quotePath(this.path)}`, file);
      const { nodes, listenPort, privateKey } = await parseGivingWay(file.text);
      const { publicKey } = privateKey;
      if (ownKey !== undefined && publicKey !== ownKey) {
        const found = `it was written for public key ${publicKey}, expected ${ownKey}`;
        return { kind: "unusable", publicKey, problems: [this.#unusable(found), ...modes] };
      }
      return { kind: "mesh", nodes, listenPort, publicKey, writtenAt: file.modifiedAt, problems: modes };
    } catch (error) {
      if (!(error instanceof ClusternetError)) throw error;
      return { kind: "unusable", problems: [this.#unusable(messageOf(error)), ...modes] };
    }
  }

  /** Makes the file hold this, mode 0600, atomically; see `KeptFile`. */
  async write(content: Content, onFlush?: () => void): Promise<Kept> {
    return await this.#file.write(content, onFlush);
  }

  #unusable(found: string): Problem {
    return {
      kind: "source-failed",
      message: `Cannot use the last mesh from file ${quotePath(this.path)}: ${found}`,
    };
  }
}
