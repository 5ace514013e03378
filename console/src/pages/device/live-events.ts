/** Readers of live events that concern one device. The service documents the fields of both types. */
import type { Schemas } from "../../api/client";
import type { LiveEvent } from "../../live/socket.svelte";

/** Signal strength with which a parent received the device. */
export interface SignalReport {
  readonly parent: string;
  /** In dBm. */
  readonly rssi: number;
  readonly time: string;
  readonly gateway: string;
}

/** Return the device as it is after an event of type `device`; null if it was deleted. */
export function parseDeviceEvent({ data }: LiveEvent): Schemas["Device"] | null {
  // The event holds a device as in the list, unless it reports the deletion.
  return data["forgotten"] === true ? null : (data as unknown as Schemas["Device"]);
}

/** Return the signal reports among events of type `report`. */
export function parseSignalEvents(events: readonly LiveEvent[]): SignalReport[] {
  return events.flatMap(({ data: { kind, parent, rssi, time, gateway } }) =>
    kind === "rssi" && typeof rssi === "number"
      ? [{ parent: String(parent), rssi, time: String(time), gateway: String(gateway) }]
      : [],
  );
}
