/** Device filters in addresses: the query has the same parameters as the REST interface. */
import type { operations } from "../../generated/schema";
import { withParam, withoutParams } from "../query";
import { en } from "../text/en";
import { formatMac, parseDeviceId } from "../text/format";
import { parseMac } from "../text/mac";
import { modelText, versionText } from "../text/versions";

/** Query parameters of the device list. */
export type DeviceQuery = NonNullable<operations["listDevices"]["parameters"]["query"]>;

export type Filter = Omit<DeviceQuery, "Include" | "MaxResults" | "NextToken" | "Sort">;
export type Sort = NonNullable<DeviceQuery["Sort"]>;

const SORTS: readonly Sort[] = ["id", "-id", "friendlyName", "-friendlyName", "connectivity", "-connectivity"];
const SINGLE_VALUES = ["ModelNumber", "FirmwareVersion", "HardwareVersion", "FriendlyName", "Gateway"] as const;
const MULTIPLE_VALUES = ["Label", "Ids"] as const;
const FILTER_NAMES: readonly (keyof Filter)[] = ["Connected", ...SINGLE_VALUES, ...MULTIPLE_VALUES];

/** Parse the filters of an address; the keys are always in the same order. */
export function parseFilter(query: URLSearchParams): Filter {
  const filter: Filter = {};
  const connected = query.get("Connected");
  if (connected === "true" || connected === "false") filter.Connected = connected === "true";
  for (const name of SINGLE_VALUES) {
    const text = query.get(name);
    if (text) filter[name] = text;
  }
  for (const name of MULTIPLE_VALUES) {
    const texts = [...new Set(query.getAll(name))].filter((text) => text !== "");
    if (texts.length > 0) filter[name] = texts;
  }
  return filter;
}

/** Build the query of a filter. */
export function buildQuery(filter: Filter): URLSearchParams {
  const pairs = FILTER_NAMES.flatMap((name) => [filter[name] ?? []].flat().map((value) => [name, String(value)]));
  return new URLSearchParams(pairs);
}

/** Parse the sort order of an address; by id by default. */
export function parseSort(query: URLSearchParams): Sort {
  return SORTS.find((sort) => sort === query.get("Sort")) ?? "id";
}

export function isFiltered(filter: Filter): boolean {
  return Object.keys(filter).length > 0;
}

/** Return a query with a value of a filter added, or removed if it was set. */
export function toggleFilter(query: URLSearchParams, name: keyof Filter, value: string): URLSearchParams {
  const chosen = query.getAll(name);
  if (chosen.includes(value)) {
    return withParam(query, name, chosen.filter((each) => each !== value));
  }
  return withParam(query, name, name === "Label" ? [...chosen, value] : [value]);
}

/** Return a query without filters; order and columns stay. */
export function clearFilters(query: URLSearchParams): URLSearchParams {
  return withoutParams(query, ...FILTER_NAMES);
}

/** Return a query with the text of the search field: a device by MAC, or a part of the name. */
export function applySearch(query: URLSearchParams, text: string): URLSearchParams {
  const next = withoutParams(query, "FriendlyName", "Ids");
  const mac = parseMac(text);
  if (mac !== null) next.set("Ids", `bmac-${mac}`);
  else if (text.trim() !== "") next.set("FriendlyName", text.trim());
  return next;
}

/** Return the text of the search field for a filter. */
export function getSearchText(filter: Filter): string {
  if (filter.FriendlyName !== undefined) return filter.FriendlyName;
  const [id, ...others] = filter.Ids ?? [];
  return id !== undefined && others.length === 0 ? formatMac(parseDeviceId(id)) : "";
}

/** Return whether two texts result in the same search. */
export function isSameSearch(one: string, other: string): boolean {
  const nothing = new URLSearchParams();
  return applySearch(nothing, one).toString() === applySearch(nothing, other).toString();
}

/** Return the display name of a filter value. */
export function formatFilterValue(name: keyof Filter, value: string): string {
  if (name === "Connected") return value === "true" ? en.common.status.connected : en.common.status.disconnected;
  if (name === "ModelNumber") return modelText(value);
  return name === "FirmwareVersion" || name === "HardwareVersion" ? versionText(value) : value;
}

export interface Chip {
  readonly name: keyof Filter;
  /** Value of the filter; null: all its values. */
  readonly value: string | null;
  readonly text: string;
}

/** Build the chips of the active filters, except those that the search field shows. */
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
