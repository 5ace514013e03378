/** Points of a line: time buckets of the service, with live values appended. */
import type { Schemas } from "../api/client";

export interface Point {
  /** Start of the bucket, in milliseconds since 1970. */
  readonly time: number;
  /** Values of the bucket; null where samples are missing and the line has a gap. */
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
  /** Index of the color. */
  readonly tone: number;
  readonly points: readonly Point[];
}

/** Number of usual intervals without a value that make a gap, as in the service. */
const GAP_INTERVALS = 3;
/** Number of intervals needed to compute the usual one. */
const MIN_INTERVALS = 3;

export function parsePoints(buckets: readonly Schemas["Bucket"][]): Point[] {
  return buckets.map((bucket) => ({ ...bucket, time: Date.parse(bucket.time) }));
}

/** Return the median interval of ascending times; null if there are too few. */
export function computeUsualInterval(times: readonly number[]): number | null {
  const gaps = times.slice(1).map((time, index) => time - (times[index] ?? time));
  if (gaps.length < MIN_INTERVALS) return null;
  return gaps.sort((a, b) => a - b)[Math.floor(gaps.length / 2)] ?? null;
}

/** Return whether a silence is longer than expected for the usual interval. */
export function isOverdue(silence: number, usual: number | null): boolean {
  return usual !== null && silence > GAP_INTERVALS * usual;
}

/** Append a value to points, in buckets of the same width. */
export function appendValue(points: readonly Point[], time: number, value: number, width: number): readonly Point[] {
  const last = points.at(-1);
  if (last && last.count > 0 && time < last.time + width) {
    return [...points.slice(0, -1), addToPoint(last, value)];
  }
  const start = last ? last.time + Math.floor((time - last.time) / width) * width : time;
  const fresh = { time: start, min: value, mean: value, max: value, last: value, count: 1 };
  const recent = points.filter((point) => point.count > 0).slice(-20);
  // A bucket may contain many samples: a distance below one bucket is never a gap.
  const usual = computeUsualInterval(recent.map((point) => point.time));
  if (last && last.count > 0 && isOverdue(start - last.time, usual)) {
    return [...points, createGap(last.time + width), fresh];
  }
  return [...points, fresh];
}

/** Return the points from a time on, and one before it, so that the line starts at the edge. */
export function slicePoints(points: readonly Point[], from: number): readonly Point[] {
  const first = points.findIndex((point) => point.time >= from);
  return first > 1 ? points.slice(first - 1) : points;
}

/** Return the last point that is not later than a time. */
export function findPoint(points: readonly Point[], time: number): Point | null {
  return points.findLast((point) => point.time <= time) ?? null;
}

function addToPoint(point: Point, value: number): Point {
  const mean = ((point.mean ?? 0) * point.count + value) / (point.count + 1);
  const min = Math.min(point.min ?? value, value);
  const max = Math.max(point.max ?? value, value);
  return { time: point.time, min, mean, max, last: value, count: point.count + 1 };
}

function createGap(time: number): Point {
  return { time, min: null, mean: null, max: null, last: null, count: 0 };
}
