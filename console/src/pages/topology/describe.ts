/** A mesh, and changes of a mesh, in words. */
import { en } from "../../text/en";
import { formatCount } from "../../text/format";
import type { Mesh, MeshChanges } from "./mesh";

const words = en.topology;

/** Return the number of devices and hops, and what is wrong with them. */
export function describeMesh({ topology: { nodes, weakLinks, singlePoints, orphans } }: Mesh): string {
  const devices = nodes.length - 1;
  const hops = nodes.reduce((most, { depth }) => Math.max(most, depth ?? 0), 0);
  return [
    words.summary.devices(formatCount(devices), devices === 1),
    hops > 0 ? words.summary.hops(formatCount(hops), hops === 1) : "",
    weakLinks.length > 0 ? words.summary.weak(formatCount(weakLinks.length), weakLinks.length === 1) : "",
    singlePoints.length > 0 ? words.summary.single(formatCount(singlePoints.length), singlePoints.length === 1) : "",
    orphans.length > 0 ? words.summary.orphans(formatCount(orphans.length)) : "",
  ]
    .filter((text) => text !== "")
    .join(" · ");
}

export function describeChanges({ moved, joined, left }: MeshChanges): string {
  return [
    moved.length > 0 ? words.changes.moved(formatCount(moved.length), moved.length === 1) : "",
    joined.length > 0 ? words.changes.joined(formatCount(joined.length)) : "",
    left.length > 0 ? words.changes.left(formatCount(left.length)) : "",
  ]
    .filter((text) => text !== "")
    .join(", ");
}
