/**
 * The executable under test, and the networks that its tests give it.
 */
import { join } from "node:path";

/** Built by scripts/test.ts. */
export const executable = join(import.meta.dir, "../../dist/clusternet");

/** ClusterNets of the lab, one per family. */
export const clusterNets = ["10.192.0.0/11", "fd10:c1::/32"];
