/** Uptime of a device within a time span, from its connectivity changes. */
import type { Schemas } from "../../../api/client";

/** Period without a change. */
export interface UptimePeriod {
  readonly from: number;
  readonly to: number;
  /** Null if unknown. */
  readonly isUp: boolean | null;
}

/** Divide a time span into periods. Changes come newest first. */
export function buildPeriods(changes: readonly Schemas["ConnectivityChange"][], from: number, to: number): UptimePeriod[] {
  const periods: UptimePeriod[] = [];
  let end = to;
  for (const { time, connected } of changes) {
    const start = Math.max(Date.parse(time), from);
    if (start < end) {
      periods.unshift({ from: start, to: end, isUp: connected });
      end = start;
    }
    if (end <= from) break;
  }
  if (end > from) periods.unshift({ from, to: end, isUp: null });
  return periods;
}

/** Return the part of the known time that the device was online, from 0 to 1; null if nothing is known. */
export function computeUptime(periods: readonly UptimePeriod[]): number | null {
  const sum = (isUp: boolean): number =>
    periods.filter((each) => each.isUp === isUp).reduce((total, each) => total + each.to - each.from, 0);
  const known = sum(true) + sum(false);
  return known === 0 ? null : sum(true) / known;
}
