/**
 * Where things lie in this project.
 */
import { join } from "node:path";

export const root = join(import.meta.dir, "..");

/** The executable that `bun run build` makes. */
export const binary = join(root, "dist/clusternet");
