/** A report as it is told live, and what a row says of it. */
import { catalogue } from "../../../api/catalogue.svelte";
import { deviceNames } from "../../../api/device-names.svelte";
import { formatValueWithUnit, statusText } from "../../../requests/request-text";
import type { LiveEvent } from "../../../live/socket.svelte";
import { en } from "../../../text/en";
import { formatDecimal, parseDeviceId } from "../../../text/format";

export const KINDS = ["heartbeat", "rssi", "dfu", "property", "measurement", "measurement-error", "event"] as const;

export type Kind = (typeof KINDS)[number];

export interface Report {
  /** Counts what was heard here: the same thing may be told twice. */
  readonly number: number;
  /** When the service told it. */
  readonly toldAt: string;
  readonly kind: Kind;
  readonly device: string;
  readonly gateway: string;
  /** When it was measured, or happened. */
  readonly time: string;
  /** All of it. */
  readonly data: LiveEvent["data"];
}

const words = en.messages.listen;

/** A report out of an event; null: it is of a kind that nobody here knows. */
export function reportIn({ time, data }: LiveEvent, number: number): Report | null {
  const kind = KINDS.find((each) => each === data["kind"]);
  if (kind === undefined) return null;
  const said = (name: string): string => String(data[name] ?? "");
  return { number, toldAt: time, kind, device: parseDeviceId(said("device")), gateway: said("gateway"), time: said("time"), data };
}

/** Whom a report mentions. */
export function mentioned({ device, gateway, data: { parent } }: Report): readonly string[] {
  return typeof parent === "string" ? [device, gateway, parent] : [device, gateway];
}

/** What it is about: a name, and what machines call it. */
export function subjectIn({ data: { identifier, name, parent } }: Report): { name: string; detail: string } {
  if (typeof parent === "string") return { name: words.heardBy(deviceNames.get(parent)), detail: "" };
  const hex = typeof identifier === "string" ? identifier : "";
  const called = typeof name === "string" ? name : (catalogue.find(hex)?.name ?? "");
  return called === "" ? { name: hex, detail: "" } : { name: called, detail: hex };
}

/** What it says, in short. */
export function valueIn({ kind, data }: Report): string {
  const { value, raw, error, identifier, name, status, rssi } = data;
  if (kind === "heartbeat") return words.status(String(status));
  if (typeof rssi === "number") return `${formatDecimal(rssi)} ${en.common.signal.unit}`;
  if (typeof error === "number") return statusText(error);
  if (value !== null && value !== undefined) return formatValueWithUnit(String(identifier ?? name ?? ""), value, false);
  return typeof raw === "string" && raw !== "" ? raw : "–";
}

/** What is to be known beside the value; nothing, most of the time. */
export function noteIn({ data: { unreachable, ext, clock } }: Report): string {
  if (unreachable === true) return words.unreachable;
  if (clock === "future" || clock === "past") return en.events.clock[clock];
  return ext === null || ext === undefined ? "" : JSON.stringify(ext);
}

/** Its number in the series; null: it has none. */
export function seqIn({ data: { seq } }: Report): number | null {
  return typeof seq === "number" ? seq : null;
}
