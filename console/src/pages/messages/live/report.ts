/** Report of a live event, and the texts of its row. */
import { catalogue } from "../../../api/catalogue.svelte";
import { deviceNames } from "../../../api/device-names.svelte";
import { formatValueWithUnit, statusText } from "../../../requests/request-text";
import type { LiveEvent } from "../../../live/socket.svelte";
import { en } from "../../../text/en";
import { formatDecimal, parseDeviceId } from "../../../text/format";

export const KINDS = ["heartbeat", "rssi", "dfu", "property", "measurement", "measurement-error", "event"] as const;

export type Kind = (typeof KINDS)[number];

export interface Report {
  /** Serial number in this page: a report can arrive twice, so its content is no key. */
  readonly number: number;
  /** Time when the service sent the event. */
  readonly sentAt: string;
  readonly kind: Kind;
  readonly device: string;
  readonly gateway: string;
  /** Time of the measurement or event. */
  readonly time: string;
  /** Content of the event. */
  readonly data: LiveEvent["data"];
}

const words = en.messages.listen;

/** Parse the report of an event; null if its kind is unknown. */
export function parseReport({ time, data }: LiveEvent, number: number): Report | null {
  const kind = KINDS.find((each) => each === data["kind"]);
  if (kind === undefined) return null;
  const readText = (name: string): string => String(data[name] ?? "");
  return { number, sentAt: time, kind, device: parseDeviceId(readText("device")), gateway: readText("gateway"), time: readText("time"), data };
}

/** Return the MACs that a report contains. */
export function listMacs({ device, gateway, data: { parent } }: Report): readonly string[] {
  return typeof parent === "string" ? [device, gateway, parent] : [device, gateway];
}

/** Return the name of what a report is about, and its identifier in hex. */
export function describeSubject({ data: { identifier, name, parent } }: Report): { name: string; detail: string } {
  if (typeof parent === "string") return { name: words.heardBy(deviceNames.get(parent)), detail: "" };
  const hex = typeof identifier === "string" ? identifier : "";
  const title = typeof name === "string" ? name : (catalogue.find(hex)?.name ?? "");
  return title === "" ? { name: hex, detail: "" } : { name: title, detail: hex };
}

/** Format the value in short. */
export function formatValue({ kind, data }: Report): string {
  const { value, raw, error, identifier, name, status, rssi } = data;
  if (kind === "heartbeat") return words.status(String(status));
  if (typeof rssi === "number") return `${formatDecimal(rssi)} ${en.common.signal.unit}`;
  if (typeof error === "number") return statusText(error);
  if (value !== null && value !== undefined) return formatValueWithUnit(String(identifier ?? name ?? ""), value, false);
  return typeof raw === "string" && raw !== "" ? raw : "–";
}

/** Return a remark about the value; usually empty. */
export function formatNote({ data: { unreachable, ext, clock } }: Report): string {
  if (unreachable === true) return words.unreachable;
  if (clock === "future" || clock === "past") return en.events.clock[clock];
  return ext === null || ext === undefined ? "" : JSON.stringify(ext);
}

/** Return the number in the series; null if it has none. */
export function readSeq({ data: { seq } }: Report): number | null {
  return typeof seq === "number" ? seq : null;
}
