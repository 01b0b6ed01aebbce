/**
 * The words by which the Kubernetes source is told what to do, for whoever checks them without loading the rest of it.
 */
import { quote } from "../core/problem.ts";

/** Instead of the path of a kubeconfig: the service account of the pod that this program runs in. */
export const inCluster = "in-cluster";

/** What keeps a text from being the name of a Node; undefined when nothing does. */
export function nodeNameProblem(found: string): string | undefined {
  if (/^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$/.test(found)) return undefined;
  return `Cannot use Kubernetes Node name ${quote(found)}: expected 1 to 253 of a-z, 0-9, . and -, the first and last a letter or digit`;
}
