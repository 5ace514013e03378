/** Columns of the device table: their widths, and which of them fit into narrow windows. */
import type { Sort } from "../../filtering/filters";
import { withoutParams } from "../../query";
import { en } from "../../text/en";

export type Name = Exclude<keyof typeof en.devices.columns, "label" | "reset">;

export interface Column {
  readonly name: Name;
  /** Width in pixels; the minimum for a column that grows. */
  readonly width: number;
  readonly grows?: true;
  /** Whether the cells are aligned to the end, as numbers are. */
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

/** Default columns, most important first; as many are shown as fit. */
const DEFAULT_COLUMNS: readonly Name[] = ["device", "status", "seen", "signal", "battery", "gateway", "firmware", "labels", "model"];

/** Additional pixels for device names before less important columns get space. */
const EXTRA_NAME_WIDTH = 60;
/** Number of default columns that are shown in any width. */
const MIN_COLUMNS = 3;

export const SELECT_WIDTH = 40;
const QUERY_KEY = "Columns";

/** Return the columns to show: those that the query names, or the default ones that fit. */
export function selectColumns(query: URLSearchParams, width: number): readonly Column[] {
  const chosen = query.get(QUERY_KEY)?.split(",");
  const names = chosen ? new Set(chosen) : pickDefaultColumns(width);
  // A row is meaningless without its device.
  return columns.filter((column) => column.name === "device" || names.has(column.name));
}

function pickDefaultColumns(width: number): Set<string> {
  const names = new Set<string>();
  let left = width - SELECT_WIDTH - EXTRA_NAME_WIDTH;
  for (const name of DEFAULT_COLUMNS) {
    left -= columns.find((column) => column.name === name)?.width ?? 0;
    if (left < 0 && names.size >= MIN_COLUMNS) break;
    names.add(name);
  }
  return names;
}

/** Return the query with a column added, or removed if it is shown. */
export function withColumn(query: URLSearchParams, shown: readonly Column[], name: Name): URLSearchParams {
  const names = new Set(shown.map((column) => column.name));
  if (!names.delete(name)) names.add(name);
  const next = new URLSearchParams(query);
  next.set(QUERY_KEY, columns.filter((column) => names.has(column.name)).map((column) => column.name).join(","));
  return next;
}

/** Return the query without chosen columns. */
export function withDefaultColumns(query: URLSearchParams): URLSearchParams {
  return withoutParams(query, QUERY_KEY);
}

/** Return the sort order after a click on a column head: ascending, descending, then the default. */
export function nextSort(column: Column, sort: Sort): Sort {
  const ascending = column.sort ?? "id";
  if (sort === ascending) return `-${ascending}`;
  return sort === `-${ascending}` ? "id" : ascending;
}

export function ariaSort(column: Column, sort: Sort): "ascending" | "descending" | "none" | undefined {
  if (column.sort === undefined) return undefined;
  if (sort === column.sort) return "ascending";
  return sort === `-${column.sort}` ? "descending" : "none";
}
