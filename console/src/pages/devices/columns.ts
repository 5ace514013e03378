/** The columns of the table: which there are, how wide each is, and which are shown where there is little room. */
import type { Sort } from "../../filtering/filters";
import { withoutParams } from "../../query";
import { en } from "../../text/en";

export type Name = Exclude<keyof typeof en.devices.columns, "label" | "reset">;

export interface Column {
  readonly name: Name;
  /** In pixels; a column that grows has at least that. */
  readonly width: number;
  readonly grows?: true;
  /** Numbers stand at the end, one below the other. */
  readonly atEnd?: true;
  readonly sort?: "id" | "friendlyName" | "connectivity";
}

export const columns: readonly Column[] = [
  { name: "device", width: 130, grows: true, sort: "friendlyName" },
  { name: "id", width: 168, sort: "id" },
  { name: "status", width: 104, sort: "connectivity" },
  { name: "gateway", width: 152 },
  { name: "signal", width: 104 },
  { name: "battery", width: 92, atEnd: true },
  { name: "firmware", width: 92 },
  { name: "hardware", width: 92 },
  { name: "model", width: 144 },
  { name: "labels", width: 170 },
  { name: "seen", width: 80, atEnd: true },
];

/** The usual columns, the most important first: as many as there is room for. */
const USUAL: readonly Name[] = ["device", "status", "seen", "signal", "battery", "gateway", "firmware", "labels", "model"];

/** How wide names of devices should be before there is room for anything less important. */
const ROOM_FOR_NAMES = 60;
const ALWAYS = 3;

export const SELECT_WIDTH = 40;
const KEY = "Columns";

/** The columns to show: those that the address names, or those for which there is room. */
export function shownIn(query: URLSearchParams, room: number): readonly Column[] {
  const wanted = query.get(KEY)?.split(",");
  const names = wanted ? new Set(wanted) : usualIn(room);
  // Without the device a row says nothing.
  return columns.filter((column) => column.name === "device" || names.has(column.name));
}

function usualIn(room: number): Set<string> {
  const names = new Set<string>();
  let left = room - SELECT_WIDTH - ROOM_FOR_NAMES;
  for (const name of USUAL) {
    left -= columns.find((column) => column.name === name)?.width ?? 0;
    if (left < 0 && names.size >= ALWAYS) break;
    names.add(name);
  }
  return names;
}

/** The same query with a column shown, or not any more. */
export function withColumn(query: URLSearchParams, shown: readonly Column[], name: Name): URLSearchParams {
  const names = new Set(shown.map((column) => column.name));
  if (!names.delete(name)) names.add(name);
  const next = new URLSearchParams(query);
  next.set(KEY, columns.filter((column) => names.has(column.name)).map((column) => column.name).join(","));
  return next;
}

/** The same query with the usual columns. */
export function withUsual(query: URLSearchParams): URLSearchParams {
  return withoutParams(query, KEY);
}

/** How a click on a head changes the order: up, down, and as it was. */
export function nextSort(column: Column, sort: Sort): Sort {
  const own = column.sort ?? "id";
  if (sort === own) return `-${own}`;
  return sort === `-${own}` ? "id" : own;
}

export function ariaSort(column: Column, sort: Sort): "ascending" | "descending" | "none" | undefined {
  if (column.sort === undefined) return undefined;
  if (sort === column.sort) return "ascending";
  return sort === `-${column.sort}` ? "descending" : "none";
}
