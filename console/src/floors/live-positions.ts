/** Live events of positions, as typed values. */
import type { LiveEvent } from "../live/events";

/** Place of a device at a time, with the radius that holds it in 90 % of cases. */
export interface LivePosition {
  readonly device: string;
  readonly site: string;
  readonly floor: number;
  readonly x: number;
  readonly y: number;
  readonly radius: number;
  readonly time: string;
}

/** Milliseconds by which a loaded position must be newer than that of an event to replace it: the next event is on its
 * way. Events follow a device, loaded positions are the mean of a minute. */
const EVENT_LEAD = 10_000;
/** Milliseconds without a reading after which a device may be elsewhere: three of the shortest usual intervals
 * (rest-52). */
const STALE_AFTER = 180_000;

/** Return the positions of live events, the oldest first. */
export function parsePositions(events: readonly LiveEvent[]): readonly LivePosition[] {
  return events.filter(({ type }) => type === "position").map(({ data }) => data as unknown as LivePosition);
}

/** Return whether the position of an event is still better than a loaded one. */
export function isCurrent(event: LivePosition, loaded: { readonly time: string }): boolean {
  return Date.parse(loaded.time) <= Date.parse(event.time) + EVENT_LEAD;
}

/** Return whether a position is so old that the device may be elsewhere; `now` in milliseconds since 1970. */
export function isStale({ time }: { readonly time: string }, now: number): boolean {
  return now - Date.parse(time) > STALE_AFTER;
}
