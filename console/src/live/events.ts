/** Live events and their filters. */
import { isObject } from "../json";
import { parseDeviceId } from "../text/format";

export interface LiveEvent {
  readonly id: string;
  readonly type: "device" | "report" | "gateway" | "job" | "execution" | "topology" | "position" | "zone" | "alarm" | "resync";
  readonly time: string;
  readonly data: Record<string, unknown>;
}

export interface LiveFilter {
  readonly Types: readonly LiveEvent["type"][];
  readonly Ids?: readonly string[];
  readonly Jobs?: readonly string[];
  /** MACs of the gateways that delivered the event. */
  readonly Gateway?: readonly string[];
}

/** Return whether an event matches a filter: the connection also delivers events for other subscribers of this tab. */
export function matchesFilter(filter: LiveFilter, event: LiveEvent): boolean {
  if (!filter.Types.includes(event.type)) return false;
  if (filter.Jobs && !filter.Jobs.includes(getJob(event))) return false;
  if (filter.Gateway && !filter.Gateway.includes(getGateway(event))) return false;
  return !filter.Ids || filter.Ids.includes(getDevice(event));
}

function getJob({ type, data }: LiveEvent): string {
  return String((type === "job" ? data["id"] : data["jobId"]) ?? "");
}

function getGateway({ type, data }: LiveEvent): string {
  if (type === "device") return String((isObject(data["live"]) && data["live"]["gateway"]) || "");
  return String((type === "gateway" ? data["mac"] : data["gateway"]) ?? "");
}

function getDevice(event: LiveEvent): string {
  const { type, data } = event;
  if (type === "report" || type === "topology" || type === "position" || type === "zone") return String(data["device"] ?? "");
  return String((type === "gateway" || type === "execution" ? data["deviceId"] : data["id"]) ?? "");
}

/** Return the new name of a device, if the event contains it. */
export function parseDeviceName({ type, data }: LiveEvent): { mac: string; name: string } | null {
  const name = data["friendlyName"];
  if ((type !== "device" && type !== "gateway") || typeof name !== "string") return null;
  return { mac: type === "gateway" ? String(data["mac"]) : parseDeviceId(String(data["id"])), name };
}
