/** Points and areas on a floor, in meters. */
export interface Point {
  readonly x: number;
  readonly y: number;
}

export interface Box {
  readonly minX: number;
  readonly minY: number;
  readonly maxX: number;
  readonly maxY: number;
}

/** Corner of a polygon in the REST interface. */
export type Corner = readonly [number, number];

export function measureDistance(one: Point, other: Point): number {
  return Math.hypot(one.x - other.x, one.y - other.y);
}

/** Return whether a point is inside one of the areas, by the even-odd rule. */
export function isInside(areas: readonly (readonly Corner[])[], { x, y }: Point): boolean {
  let isIn = false;
  for (const area of areas) {
    for (const [index, [x1, y1]] of area.entries()) {
      const [x2, y2] = area.at(index - 1) ?? [x1, y1];
      if (y1 > y !== y2 > y && x < ((x2 - x1) * (y - y1)) / (y2 - y1) + x1) isIn = !isIn;
    }
  }
  return isIn;
}

/** Return the area of a polygon in square meters. */
export function measureArea(polygon: readonly Corner[]): number {
  const twice = polygon.reduce((sum, [x1, y1], index) => {
    const [x2, y2] = polygon.at(index - 1) ?? [x1, y1];
    return sum + (x2 * y1 - x1 * y2);
  }, 0);
  return Math.abs(twice) / 2;
}

/** Return the mean of the corners, where the name of a polygon is shown. */
export function findCenter(polygon: readonly Corner[]): Point {
  const count = Math.max(1, polygon.length);
  return {
    x: polygon.reduce((sum, [x]) => sum + x, 0) / count,
    y: polygon.reduce((sum, [, y]) => sum + y, 0) / count,
  };
}
