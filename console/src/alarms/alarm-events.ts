/** Alarms in live events. */
import type { LiveEvent } from "../live/socket.svelte";
import type { Alarm } from "./alarm-styles";

/** Return the latest state of each alarm in these events, by id. */
export function collectAlarms(events: readonly LiveEvent[]): ReadonlyMap<string, Alarm> {
  // An event contains the alarm as in REST.
  return new Map(events.map(({ data }) => [String(data["id"]), data as unknown as Alarm]));
}

/** Return the newer state of an alarm: a response may be older than an event. */
export function pickNewer(current: Alarm, other: Alarm | undefined): Alarm {
  return other !== undefined && other.version >= current.version ? other : current;
}
