/** Which devices are meant, in the list of devices and wherever some are chosen: the query of the address has the very
 * filters of the REST interface. */
import type { operations } from "../../generated/schema";
import { withParam, withoutParams } from "../query";
import { en } from "../text/en";
import { formatMac, parseDeviceId } from "../text/format";
import { parseMac } from "../text/mac";
import { modelText, versionText } from "../text/versions";

/** All that the list of devices can be asked for. */
export type DeviceQuery = NonNullable<operations["listDevices"]["parameters"]["query"]>;

export type Filter = Omit<DeviceQuery, "Include" | "MaxResults" | "NextToken" | "Sort">;
export type Sort = NonNullable<DeviceQuery["Sort"]>;

const SORTS: readonly Sort[] = ["id", "-id", "friendlyName", "-friendlyName", "connectivity", "-connectivity"];
const TEXTS = ["ModelNumber", "FirmwareVersion", "HardwareVersion", "FriendlyName", "Gateway"] as const;
const MANY = ["Label", "Ids"] as const;
const NAMES: readonly (keyof Filter)[] = ["Connected", ...TEXTS, ...MANY];

/** The filters in an address, always in the same order. */
export function parseFilter(query: URLSearchParams): Filter {
  const filter: Filter = {};
  const connected = query.get("Connected");
  if (connected === "true" || connected === "false") filter.Connected = connected === "true";
  for (const name of TEXTS) {
    const text = query.get(name);
    if (text) filter[name] = text;
  }
  for (const name of MANY) {
    const texts = [...new Set(query.getAll(name))].filter((text) => text !== "");
    if (texts.length > 0) filter[name] = texts;
  }
  return filter;
}

/** The query that says a filter. */
export function buildQuery(filter: Filter): URLSearchParams {
  const pairs = NAMES.flatMap((name) => [filter[name] ?? []].flat().map((value) => [name, String(value)]));
  return new URLSearchParams(pairs);
}

/** The order in an address: by id, unless it says otherwise. */
export function parseSort(query: URLSearchParams): Sort {
  return SORTS.find((sort) => sort === query.get("Sort")) ?? "id";
}

export function isFiltered(filter: Filter): boolean {
  return Object.keys(filter).length > 0;
}

/** The same query with a value chosen, or not any more if it was. */
export function toggleFilter(query: URLSearchParams, name: keyof Filter, value: string): URLSearchParams {
  const chosen = query.getAll(name);
  if (chosen.includes(value)) {
    return withParam(query, name, chosen.filter((each) => each !== value));
  }
  return withParam(query, name, name === "Label" ? [...chosen, value] : [value]);
}

/** The same query without filters; order and columns stay. */
export function clearFilters(query: URLSearchParams): URLSearchParams {
  return withoutParams(query, ...NAMES);
}

/** The same query with what somebody types into the search: a device itself, or a part of names. */
export function applySearch(query: URLSearchParams, text: string): URLSearchParams {
  const next = withoutParams(query, "FriendlyName", "Ids");
  const mac = parseMac(text);
  if (mac !== null) next.set("Ids", `bmac-${mac}`);
  else if (text.trim() !== "") next.set("FriendlyName", text.trim());
  return next;
}

/** What the search says for a filter. */
export function getSearchText(filter: Filter): string {
  if (filter.FriendlyName !== undefined) return filter.FriendlyName;
  const [id, ...others] = filter.Ids ?? [];
  return id !== undefined && others.length === 0 ? formatMac(parseDeviceId(id)) : "";
}

/** Whether two texts look for the same. */
export function isSameSearch(one: string, other: string): boolean {
  const nothing = new URLSearchParams();
  return applySearch(nothing, one).toString() === applySearch(nothing, other).toString();
}

/** What a value of a filter is called. */
export function formatFilterValue(name: keyof Filter, value: string): string {
  if (name === "Connected") return value === "true" ? en.common.status.connected : en.common.status.disconnected;
  if (name === "ModelNumber") return modelText(value);
  return name === "FirmwareVersion" || name === "HardwareVersion" ? versionText(value) : value;
}

export interface Chip {
  readonly name: keyof Filter;
  /** null: all of its values. */
  readonly value: string | null;
  readonly text: string;
}

/** The filters that are in force; what the search says stands there already. */
export function buildChips(filter: Filter, gatewayName: (mac: string) => string): readonly Chip[] {
  const chips: Chip[] = [];
  const add = (name: keyof Filter, value: string, text = formatFilterValue(name, value)): void => {
    chips.push({ name, value, text: `${en.devices.filter[name]}: ${text}` });
  };
  if (filter.Connected !== undefined) add("Connected", String(filter.Connected));
  if (filter.ModelNumber !== undefined) add("ModelNumber", filter.ModelNumber);
  if (filter.FirmwareVersion !== undefined) add("FirmwareVersion", filter.FirmwareVersion);
  if (filter.HardwareVersion !== undefined) add("HardwareVersion", filter.HardwareVersion);
  if (filter.Gateway !== undefined) add("Gateway", filter.Gateway, gatewayName(parseDeviceId(filter.Gateway)));
  for (const label of filter.Label ?? []) add("Label", label);
  const ids = filter.Ids ?? [];
  if (ids.length > 1 || (ids.length === 1 && filter.FriendlyName !== undefined)) {
    chips.push({ name: "Ids", value: null, text: en.devices.counted(ids.length) });
  }
  return chips;
}
