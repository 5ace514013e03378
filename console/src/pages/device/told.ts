/** What live events of a device hold. The service documents both, so nothing here is guessed. */
import type { Schemas } from "../../api/client";
import type { LiveEvent } from "../../live/socket.svelte";

/** How a parent heard the device. */
export interface Heard {
  readonly parent: string;
  readonly rssi: number;
  readonly time: string;
  readonly gateway: string;
}

/** The device as it is now; null when it was forgotten. */
export function deviceTold({ data }: LiveEvent): Schemas["Device"] | null {
  // An event of type `device` has a device as in the list, unless it says that it is no more.
  return data["forgotten"] === true ? null : (data as unknown as Schemas["Device"]);
}

export function heardTold(events: readonly LiveEvent[]): Heard[] {
  return events.flatMap(({ data: { kind, parent, rssi, time, gateway } }) =>
    kind === "rssi" && typeof rssi === "number"
      ? [{ parent: String(parent), rssi, time: String(time), gateway: String(gateway) }]
      : [],
  );
}
