/** What came of a request, in words. */
import { catalogue } from "../api/catalogue.svelte";
import { en } from "../text/en";
import { valueText } from "../text/format";
import type { RequestRecord } from "./request.svelte";

const words = en.requests;

/** Problems after which nobody knows whether something happened. */
const MAYBE: ReadonlySet<string> = new Set(["gateway-timeout", "gateway-lost", "interrupted", "malformed-response"]);

/** A status of a response; those that nobody here knows are told as they are. */
export function statusText(status: number): string {
  return has(words.status, status) ? words.status[status] : words.otherStatus(status);
}

/** Why no response came. What is known here is told in our words, all else in those of the service. */
export function problemText(problem: { readonly code: string; readonly detail: string }): string {
  return has(words.problem, problem.code) ? words.problem[problem.code] : problem.detail;
}

/** Whether something may have happened although no response came. */
export function isUncertain(problem: { readonly code: string }): boolean {
  return MAYBE.has(problem.code);
}

/** A value with its unit, if the catalogue knows one; raw values have none. */
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

/** Whether its values are hex. */
export function isRaw(record: RequestRecord): boolean {
  return record.request.operation === "read" || record.request.operation === "write";
}

function has<Table extends object>(table: Table, key: PropertyKey): key is keyof Table {
  return Object.hasOwn(table, key);
}
