/** When a device was online within a time, from the changes that are known. */
import type { Schemas } from "../../../api/client";

export interface Stretch {
  readonly from: number;
  readonly to: number;
  /** Null: nobody knows. */
  readonly isUp: boolean | null;
}

/** Stretches that fill the time; changes come newest first. */
export function stretches(changes: readonly Schemas["ConnectivityChange"][], from: number, to: number): Stretch[] {
  const found: Stretch[] = [];
  let end = to;
  for (const { time, connected } of changes) {
    const start = Math.max(Date.parse(time), from);
    if (start < end) {
      found.unshift({ from: start, to: end, isUp: connected });
      end = start;
    }
    if (end <= from) break;
  }
  if (end > from) found.unshift({ from, to: end, isUp: null });
  return found;
}

/** Which part of what is known was online; null when nothing is known. */
export function shareUp(all: readonly Stretch[]): number | null {
  const sum = (isUp: boolean): number =>
    all.filter((each) => each.isUp === isUp).reduce((total, each) => total + each.to - each.from, 0);
  const known = sum(true) + sum(false);
  return known === 0 ? null : sum(true) / known;
}
