/** What is told, and what one asks to be told. */
import { macOf } from "../text/format";

export interface LiveEvent {
  readonly id: string;
  readonly type: "device" | "report" | "gateway" | "resync";
  readonly time: string;
  readonly data: Record<string, unknown>;
}

export interface Filter {
  readonly Types: readonly LiveEvent["type"][];
  readonly Ids?: readonly string[];
}

/** Whether an event is what a filter asks for: other listeners of this tab want other ones. */
export function fits(filter: Filter, event: LiveEvent): boolean {
  return filter.Types.includes(event.type) && (!filter.Ids || filter.Ids.includes(deviceOf(event)));
}

function deviceOf(event: LiveEvent): string {
  const { type, data } = event;
  if (type === "report") return String(data["device"] ?? "");
  return String((type === "gateway" ? data["deviceId"] : data["id"]) ?? "");
}

/** What a device is called from now on, if an event tells it. */
export function nameIn({ type, data }: LiveEvent): { mac: string; name: string } | null {
  const name = data["friendlyName"];
  if ((type !== "device" && type !== "gateway") || typeof name !== "string") return null;
  return { mac: type === "gateway" ? String(data["mac"]) : macOf(String(data["id"])), name };
}
