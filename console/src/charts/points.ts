/** What a line is drawn from: buckets of time, as the service gives them, and what comes live put behind them. */
import type { Schemas } from "../api/client";

export interface Point {
  /** When the bucket begins, in milliseconds since 1970. */
  readonly time: number;
  /** Null where samples are missing: the line has a gap there. */
  readonly min: number | null;
  readonly mean: number | null;
  readonly max: number | null;
  readonly last: number | null;
  readonly count: number;
}

export interface Line {
  readonly key: string;
  readonly name: string;
  readonly unit: string | null;
  /** Which of the colours it has. */
  readonly tone: number;
  readonly points: readonly Point[];
}

/** How many usual intervals without a word are a gap: the service counts the same. */
const MISSED = 3;
/** How many gaps must be known before one can tell which are usual. */
const ENOUGH = 3;

export function parsePoints(buckets: readonly Schemas["Bucket"][]): Point[] {
  return buckets.map((bucket) => ({ ...bucket, time: Date.parse(bucket.time) }));
}

/** The median distance of ascending times; null while too few are known. */
export function computeUsualInterval(times: readonly number[]): number | null {
  const gaps = times.slice(1).map((time, index) => time - (times[index] ?? time));
  if (gaps.length < ENOUGH) return null;
  return gaps.sort((a, b) => a - b)[Math.floor(gaps.length / 2)] ?? null;
}

/** Whether a silence is longer than can be expected of somebody who speaks at such intervals. */
export function isOverdue(silence: number, usual: number | null): boolean {
  return usual !== null && silence > MISSED * usual;
}

/** Points with a new value at their end, in buckets as wide as theirs. */
export function appendValue(points: readonly Point[], time: number, value: number, width: number): readonly Point[] {
  const before = points.at(-1);
  if (before && before.count > 0 && time < before.time + width) {
    return [...points.slice(0, -1), merged(before, value)];
  }
  const start = before ? before.time + Math.floor((time - before.time) / width) * width : time;
  const fresh = { time: start, min: value, mean: value, max: value, last: value, count: 1 };
  const known = points.filter((point) => point.count > 0).slice(-20);
  // A bucket may hold many samples: what is nearer than one bucket is never a gap.
  const usual = computeUsualInterval(known.map((point) => point.time));
  if (before && before.count > 0 && isOverdue(start - before.time, usual)) {
    return [...points, emptyAt(before.time + width), fresh];
  }
  return [...points, fresh];
}

/** Points from a time on; one before it stays, so that the line enters from the edge. */
export function slicePoints(points: readonly Point[], from: number): readonly Point[] {
  const first = points.findIndex((point) => point.time >= from);
  return first > 1 ? points.slice(first - 1) : points;
}

/** The point that was current at a time: the last one that is not later. */
export function findPoint(points: readonly Point[], time: number): Point | null {
  return points.findLast((point) => point.time <= time) ?? null;
}

function merged(point: Point, value: number): Point {
  const mean = ((point.mean ?? 0) * point.count + value) / (point.count + 1);
  const min = Math.min(point.min ?? value, value);
  const max = Math.max(point.max ?? value, value);
  return { time: point.time, min, mean, max, last: value, count: point.count + 1 };
}

function emptyAt(time: number): Point {
  return { time, min: null, mean: null, max: null, last: null, count: 0 };
}
