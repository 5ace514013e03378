/** A line that goes on: what was read, and behind it what comes. */
import { type Point, slicePoints, appendValue } from "./points";

export class Curve {
  /** Everything up to a time, in buckets of this width. */
  constructor(
    readonly points: readonly Point[],
    readonly width: number,
    readonly completeUpTo: number,
  ) {}

  /** With a new value; what is before `from` need not be kept. Null when it is late: it belongs to a time that was read
   * already, and nobody can tell whether it was there. */
  append(time: number, value: number, from: number): Curve | null {
    if (time < this.completeUpTo) return null;
    return new Curve(appendValue(slicePoints(this.points, from), time, value, this.width), this.width, time + 1);
  }
}
