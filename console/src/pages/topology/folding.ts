/** Folded branches of a mesh: a rule for all of them, and the nodes to which the opposite applies. So a thousand folded
 * branches are one word in the address, and one of them that the user opened is one MAC more. */
import { type Mesh, listNodes } from "./mesh";

export interface Folding {
  /** `auto` folds the deepest levels of a mesh that is too large to draw at once. */
  readonly rule: "auto" | "all" | "none";
  /** MACs of nodes that are unfolded where the rule folds, and folded where it does not. */
  readonly exceptions: readonly string[];
}

export const DEFAULT_FOLDING: Folding = { rule: "auto", exceptions: [] };

/** Nodes up to which branches are unfolded by default. The children of the gateway are always shown. */
const MAX_UNFOLDED = 2500;

/** Return the folded nodes of a mesh. */
export function listFolded(mesh: Mesh, { rule, exceptions }: Folding): ReadonlySet<string> {
  const folded = new Set(rule === "all" ? listBranches(mesh, 1) : rule === "auto" ? listDeepBranches(mesh) : []);
  for (const mac of exceptions) if (mesh.byMac.has(mac) && !folded.delete(mac)) folded.add(mac);
  return folded;
}

/** Fold nodes that are unfolded, and unfold those that are folded. */
export function toggleNodes({ rule, exceptions }: Folding, macs: readonly string[]): Folding {
  const next = new Set(exceptions);
  for (const mac of macs) if (!next.delete(mac)) next.add(mac);
  return { rule, exceptions: [...next] };
}

/** Return the nodes of the last level that can be shown if the mesh is too large to draw at once. */
function listDeepBranches(mesh: Mesh): readonly string[] {
  const perLevel: number[] = [];
  for (const { level } of listNodes(mesh)) perLevel[level] = (perLevel[level] ?? 0) + 1;
  let [shown, last] = [0, 0];
  for (const [level, count] of perLevel.entries()) {
    shown += count;
    if (level > 1 && shown > MAX_UNFOLDED) break;
    last = level;
  }
  return last === perLevel.length - 1 ? [] : listBranches(mesh, last);
}

/** Return the nodes of a level that have a branch. */
function listBranches(mesh: Mesh, level: number): readonly string[] {
  return listNodes(mesh).flatMap((node) => (node.level === level && node.children.length > 0 ? [node.mac] : []));
}
