/** A line that goes on: what was read, and behind it what comes. */
import { type Point, since, withValue } from "./points";

export class Curve {
  /** Everything up to a time, in buckets of this width. */
  constructor(
    readonly points: readonly Point[],
    readonly width: number,
    readonly knownTo: number,
  ) {}

  /** With a new value; what is before `from` need not be kept. Null when it is late: it belongs to a time that was read
   * already, and nobody can tell whether it was there. */
  with(time: number, value: number, from: number): Curve | null {
    if (time < this.knownTo) return null;
    return new Curve(withValue(since(this.points, from), time, value, this.width), this.width, time + 1);
  }
}
