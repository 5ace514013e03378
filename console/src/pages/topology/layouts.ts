/** Positions of the nodes of a mesh. The layered and the radial layout follow from the tree alone, so that the same mesh
 * always looks the same; that of forces is computed in a worker. */
import type { MeshNode } from "./mesh";

export const LAYOUTS = ["tree", "radial", "force"] as const;
export type LayoutName = (typeof LAYOUTS)[number];

export interface Box {
  readonly left: number;
  readonly top: number;
  readonly right: number;
  readonly bottom: number;
}

export interface Layout {
  readonly name: LayoutName;
  readonly nodes: readonly MeshNode[];
  readonly indexes: ReadonlyMap<string, number>;
  readonly x: Float32Array;
  readonly y: Float32Array;
  readonly box: Box;
}

/** Distance of two leaves, and of two levels, in pixels at a scale of 1. */
export const ROW = 26;
const COLUMN = 240;
/** Least distance of two circles, and of two nodes on the outer one. */
const RING = 110;
const ARC = 18;

/** Compute the layered or the radial layout of listed nodes. */
export function computeLayout(name: LayoutName, nodes: readonly MeshNode[]): Layout {
  const indexes = new Map(nodes.map(({ mac }, index) => [mac, index]));
  const rows = computeRows(nodes, indexes);
  const levels = computeLevels(nodes);
  if (name === "tree") {
    return buildLayout(name, nodes, indexes, levels.map((level) => level * COLUMN), rows.map((row) => row * ROW));
  }
  const count = Math.max(1, rows.reduce((most, row) => Math.max(most, row), 0) + 1);
  const deepest = Math.max(1, levels.reduce((most, level) => Math.max(most, level), 0));
  const ring = Math.max(RING, (count * ARC) / (2 * Math.PI * deepest));
  const angles = rows.map((row) => (row / count) * 2 * Math.PI - Math.PI / 2);
  return buildLayout(
    name,
    nodes,
    indexes,
    levels.map((level, index) => level * ring * Math.cos(angles[index] ?? 0)),
    levels.map((level, index) => level * ring * Math.sin(angles[index] ?? 0)),
  );
}

export function buildLayout(
  name: LayoutName,
  nodes: readonly MeshNode[],
  indexes: ReadonlyMap<string, number>,
  xs: ArrayLike<number>,
  ys: ArrayLike<number>,
): Layout {
  const [x, y] = [Float32Array.from(xs), Float32Array.from(ys)];
  const least = (values: Float32Array): number => values.reduce((a, b) => Math.min(a, b), Infinity);
  const most = (values: Float32Array): number => values.reduce((a, b) => Math.max(a, b), -Infinity);
  return { name, nodes, indexes, x, y, box: { left: least(x), top: least(y), right: most(x), bottom: most(y) } };
}

/** Give each leaf a row of its own, and place each other node in the middle of its children. */
function computeRows(nodes: readonly MeshNode[], indexes: ReadonlyMap<string, number>): number[] {
  const rows = nodes.map(() => 0);
  let next = 0;
  for (const [index, node] of nodes.entries()) {
    // Orphans follow after a gap.
    if (node.parent === null && index > 0) next += 1;
    if (!hasListedChildren(node, indexes)) rows[index] = next++;
  }
  for (let index = nodes.length - 1; index >= 0; index -= 1) {
    const node = nodes[index];
    if (!node || !hasListedChildren(node, indexes)) continue;
    const [first, last] = [node.children[0], node.children.at(-1)].map((child) => rows[indexes.get(child?.mac ?? "") ?? 0] ?? 0);
    rows[index] = ((first ?? 0) + (last ?? 0)) / 2;
  }
  return rows;
}

function hasListedChildren(node: MeshNode, indexes: ReadonlyMap<string, number>): boolean {
  return node.children[0] !== undefined && indexes.has(node.children[0].mac);
}

/** Return the level of each node. Orphans are beside the first level: no hop is known to lead to them. */
function computeLevels(nodes: readonly MeshNode[]): number[] {
  return nodes.map(({ level, data }) => (data.orphan ? level + 1 : level));
}
