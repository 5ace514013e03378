/** Suggestion of the next survey point: where positions are least exact, and no anchor or survey point is near.
 *
 * Both count: a point beside another one tells little, and one where positions are exact is not needed. Without a
 * coverage of the floor, only the distance counts: the model of a site is least certain where nothing was measured.
 */
import { type Box, type Corner, type Point, isInside, measureDistance } from "../../../../floors/geometry";
import { type FloorCoverage, findCell } from "../coverage/classes";

export interface Suggestion extends Point {
  readonly reason: "radius" | "distance";
}

/** Number of candidates along the longer side of a floor. */
const STEPS = 40;

/** Return the suggested point of a floor; null if there is no walkable place. */
export function suggestPoint(
  floor: Box & { readonly walkable?: readonly (readonly Corner[])[] | null | undefined },
  known: readonly Point[],
  coverage: FloorCoverage | null,
): Suggestion | null {
  const reason = coverage?.radius.some((radius) => radius !== null) ? "radius" : "distance";
  const step = Math.max(floor.maxX - floor.minX, floor.maxY - floor.minY) / STEPS;
  let [best, most]: [Point | null, number] = [null, -1];
  for (let x = floor.minX + step / 2; x < floor.maxX; x += step) {
    for (let y = floor.minY + step / 2; y < floor.maxY; y += step) {
      const point = { x, y };
      if (floor.walkable && !isInside(floor.walkable, point)) continue;
      const need = measureNearest(known, point) * (coverage && reason === "radius" ? getRadius(coverage, point) : 1);
      if (need > most) [best, most] = [point, need];
    }
  }
  return best && { ...best, reason };
}

/** Return the distance to the nearest known point; 1 if there is none. */
function measureNearest(known: readonly Point[], point: Point): number {
  return known.length === 0 ? 1 : Math.min(...known.map((each) => measureDistance(each, point)));
}

/** Return the radius of positions at a point; 0 where there are none, since a survey point does not change that. */
function getRadius(coverage: FloorCoverage, point: Point): number {
  const cell = findCell(coverage, point);
  return (cell === null ? null : coverage.radius[cell]) ?? 0;
}
