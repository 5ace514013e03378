/** Suggestion of the next survey point: where the nearest anchor or survey point is farthest away.
 *
 * The uncertainty of positions would say it better, but the service does not map it. Distance is good enough: the model
 * of a site is least certain where nothing was measured.
 */
import { type Box, type Corner, type Point, isInside, measureDistance } from "../../../../floors/geometry";

/** Number of candidates along the longer side of a floor. */
const STEPS = 40;

/** Return the suggested point of a floor; null if there is no walkable place. */
export function suggestPoint(
  floor: Box & { readonly walkable?: readonly (readonly Corner[])[] | null | undefined },
  known: readonly Point[],
): Point | null {
  const step = Math.max(floor.maxX - floor.minX, floor.maxY - floor.minY) / STEPS;
  let [best, most]: [Point | null, number] = [null, -1];
  for (let x = floor.minX + step / 2; x < floor.maxX; x += step) {
    for (let y = floor.minY + step / 2; y < floor.maxY; y += step) {
      const point = { x, y };
      if (floor.walkable && !isInside(floor.walkable, point)) continue;
      const nearest = Math.min(...known.map((each) => measureDistance(each, point)), Number.MAX_VALUE);
      if (nearest > most) [best, most] = [point, nearest];
    }
  }
  return best;
}
