/** Texts for outcomes of requests. */
import { catalogue } from "../api/catalogue.svelte";
import { en } from "../text/en";
import { valueText } from "../text/format";
import type { RequestRecord } from "./request.svelte";

const words = en.requests;

/** Problems after which a request may have been executed. */
const UNCERTAIN_CODES: ReadonlySet<string> = new Set(["gateway-timeout", "gateway-lost", "interrupted", "malformed-response"]);

/** Return the text of a response status; unknown ones are shown as numbers. */
export function statusText(status: number): string {
  return has(words.status, status) ? words.status[status] : words.otherStatus(status);
}

/** Return why no response arrived: our text for known codes, otherwise that of the service. */
export function problemText(problem: { readonly code: string; readonly detail: string }): string {
  return has(words.problem, problem.code) ? words.problem[problem.code] : problem.detail;
}

/** Return whether the request may have been executed although no response arrived. */
export function isUncertain(problem: { readonly code: string }): boolean {
  return UNCERTAIN_CODES.has(problem.code);
}

/** Format a value with the unit of the catalogue; raw values have none. */
export function formatValueWithUnit(identifier: string, value: unknown, isRaw: boolean): string {
  const unit = isRaw || value === null || value === undefined ? null : catalogue.getUnit(identifier);
  return unit === null || unit === "" ? valueText(value) : `${valueText(value)} ${unit}`;
}

export function isRead(record: RequestRecord): boolean {
  return record.request.operation === "read" || record.request.operation === "read-decoded";
}

export function isWrite(record: RequestRecord): boolean {
  return record.request.operation === "write" || record.request.operation === "write-decoded";
}

/** Return whether the values are hex. */
export function isRaw(record: RequestRecord): boolean {
  return record.request.operation === "read" || record.request.operation === "write";
}

function has<Table extends object>(table: Table, key: PropertyKey): key is keyof Table {
  return Object.hasOwn(table, key);
}
