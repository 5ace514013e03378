/** Trail of a device: its positions, the oldest first, and the lines between them. */
import type { Point } from "../../../../floors/geometry";

interface TrailPoint extends Point {
  readonly floor: number;
  readonly time: string;
}

/** Milliseconds between two positions after which the path between them is unknown: two steps of a minute. */
const MAX_GAP = 120_000;

/** Return the positions since a time, in milliseconds since 1970: loaded ones, and from the first event on those of
 * events. */
export function joinTrail<Spot extends { readonly time: string }>(
  loaded: readonly Spot[],
  events: readonly Spot[],
  since: number,
): readonly Spot[] {
  const first = Date.parse(events[0]?.time ?? "");
  const before = loaded.filter(({ time }) => !(Date.parse(time) >= first));
  return [...before, ...events].filter(({ time }) => Date.parse(time) > since);
}

/** Return the lines between successive positions on a floor. Where positions are missing, a line would lead through
 * walls. */
export function listLines<Spot extends TrailPoint>(trail: readonly Spot[], floor: number): readonly (readonly [Spot, Spot])[] {
  return trail.slice(1).flatMap((to, index) => {
    const from = trail[index];
    if (from === undefined || from.floor !== floor || to.floor !== floor) return [];
    return Date.parse(to.time) - Date.parse(from.time) > MAX_GAP ? [] : [[from, to] as const];
  });
}
