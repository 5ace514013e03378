/** Mesh of a gateway as a tree: built from a response of the service, and compared with another one. */
import type { Schemas } from "../../api/client";
import { parseDeviceId } from "../../text/format";

export interface MeshNode {
  readonly mac: string;
  /** Null for the gateway, and for orphans without a known parent in the mesh. */
  readonly parent: MeshNode | null;
  readonly children: readonly MeshNode[];
  /** Number of nodes between this one and the root of its tree. */
  readonly level: number;
  readonly data: Schemas["TopologyNode"];
}

export interface Mesh {
  readonly topology: Schemas["Topology"];
  readonly byMac: ReadonlyMap<string, MeshNode>;
  /** The gateway, then orphans that have no parent here. */
  readonly roots: readonly MeshNode[];
}

type Writable = MeshNode & { parent: MeshNode | null; children: MeshNode[]; level: number };

export function buildMesh(topology: Schemas["Topology"]): Mesh {
  const byMac = new Map<string, Writable>();
  for (const data of topology.nodes) {
    const mac = parseDeviceId(data.device);
    byMac.set(mac, { mac, parent: null, children: [], level: 0, data });
  }
  const roots: MeshNode[] = [];
  for (const node of byMac.values()) {
    const parent = node.data.parent === null ? undefined : byMac.get(node.data.parent);
    // An orphan whose parent has a path does not reach it: it is not part of that tree.
    if (!parent || (node.data.orphan && !parent.data.orphan)) roots.push(node);
    else {
      node.parent = parent;
      parent.children.push(node);
    }
  }
  const mesh = { topology, byMac, roots };
  for (const node of listNodes(mesh) as Iterable<Writable>) node.level = node.parent === null ? 0 : node.parent.level + 1;
  return mesh;
}

/** Return the nodes of a mesh from the roots to the leaves, each followed by its branch, without folded branches. */
export function listNodes({ roots }: Mesh, folded: ReadonlySet<string> = new Set()): MeshNode[] {
  const listed: MeshNode[] = [];
  const waiting = [...roots].reverse();
  for (let node = waiting.pop(); node !== undefined; node = waiting.pop()) {
    listed.push(node);
    if (!folded.has(node.mac)) for (const child of [...node.children].reverse()) waiting.push(child);
  }
  return listed;
}

/** Return the nodes from a node to the root of its tree, with both. */
export function listPath(node: MeshNode): MeshNode[] {
  const path: MeshNode[] = [];
  for (let each: MeshNode | null = node; each !== null; each = each.parent) path.push(each);
  return path;
}

export interface MeshChanges {
  /** Devices that have another parent. */
  readonly moved: readonly string[];
  readonly joined: readonly string[];
  readonly left: readonly string[];
}

/** Return what differs between two meshes; null if every device has the same parent. */
export function compareMeshes(before: Mesh, after: Mesh): MeshChanges | null {
  const moved: string[] = [];
  const joined: string[] = [];
  for (const [mac, { data }] of after.byMac) {
    const earlier = before.byMac.get(mac)?.data;
    if (earlier === undefined) joined.push(mac);
    else if (hasMoved(earlier, data)) moved.push(mac);
  }
  const left = [...before.byMac.keys()].filter((mac) => !after.byMac.has(mac));
  return moved.length + joined.length + left.length === 0 ? null : { moved, joined, left };
}

/** Return a mesh with the values and findings of a newer one, but with its own nodes and parents. A device that has
 * another parent keeps its signal, which is that of the link to the parent before. */
export function updateValues(mesh: Mesh, newer: Mesh): Mesh {
  const nodes = mesh.topology.nodes.map((node) => {
    const found = newer.byMac.get(parseDeviceId(node.device))?.data;
    if (found === undefined) return node;
    const { cutsOff, load, rssi, seenAt, signal } = found;
    return { ...node, cutsOff, load, ...(!hasMoved(node, found) && { rssi, seenAt, signal }) };
  });
  return buildMesh({ ...newer.topology, nodes });
}

function hasMoved(before: Schemas["TopologyNode"], after: Schemas["TopologyNode"]): boolean {
  return before.parent !== after.parent || before.orphan !== after.orphan;
}
