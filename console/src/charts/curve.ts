/** Line of loaded points that grows with live values. */
import { type Point, slicePoints, appendValue } from "./points";

export class Curve {
  /** Points up to a time, in buckets of `width` milliseconds. */
  constructor(
    readonly points: readonly Point[],
    readonly width: number,
    readonly completeUpTo: number,
  ) {}

  /** Return the line with a new value, without points before `from`. Return null for a late value: it may be part of
   * the loaded points already. */
  append(time: number, value: number, from: number): Curve | null {
    if (time < this.completeUpTo) return null;
    return new Curve(appendValue(slicePoints(this.points, from), time, value, this.width), this.width, time + 1);
  }
}
