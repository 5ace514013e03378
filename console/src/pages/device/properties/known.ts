/** What is known of the properties of a device: what it reported, what was read from it, and what it was told to hold. */
import type { Schemas } from "../../../api/client";
import type { RequestRecord } from "../../../requests/request.svelte";
import type { LastValue } from "../../../requests/last-value";
import { type Form, getPropertyKey, parseProperty } from "../../../requests/property";
import { isRaw, isRead, isWrite } from "../../../requests/request-text";
import { isObject } from "../../../json";

type Sample = Schemas["Sample"];

/** A value that was written last, and whether the device has told it since. */
export interface Wish {
  readonly value: unknown;
  readonly form: Form;
  readonly time: string;
  readonly by: string;
  readonly state: "open" | "met" | "unmet" | "unknown";
}

export interface Row {
  readonly key: string;
  readonly name: string | null;
  readonly seen: LastValue | null;
  readonly wish: Wish | null;
}

/** One row for each property, by its identifier. Records come newest first. */
export function rowsOf(samples: ReadonlyMap<string, Sample>, records: readonly RequestRecord[]): readonly Row[] {
  const reads = newest(records.filter(isRead));
  const writes = newest(records.filter((record) => isWrite(record) && isReadable(record)));
  const keys = new Set([...samples.keys(), ...reads.keys(), ...writes.keys()]);
  return [...keys].sort().map((key) => {
    const sample = samples.get(key);
    const seen = later(sample ? reported(sample) : null, readBy(reads.get(key)));
    return { key, name: parseProperty(key)?.entry?.name ?? sample?.name ?? null, seen, wish: wishOf(writes.get(key), seen) };
  });
}

/** The newest sample of each property; those whose time is not believed decide nothing. */
export function withSamples(known: ReadonlyMap<string, Sample>, more: Iterable<Sample>): ReadonlyMap<string, Sample> {
  const found = new Map(known);
  for (const sample of more) {
    const key = sample.identifier ?? sample.name;
    if (key === null || sample.kind !== "property" || sample.clock !== null) continue;
    const before = found.get(key);
    if (before === undefined || Date.parse(before.time) <= Date.parse(sample.time)) found.set(key, sample);
  }
  return found;
}

function newest(records: readonly RequestRecord[]): ReadonlyMap<string, RequestRecord> {
  const found = new Map<string, RequestRecord>();
  for (const record of records) {
    const key = getPropertyKey(record.request.identifier ?? "");
    if (record.response?.status === 0 && !found.has(key)) found.set(key, record);
  }
  return found;
}

/** What can only be written is never reported: nobody waits for it. */
function isReadable(record: RequestRecord): boolean {
  const subject = parseProperty(record.request.identifier ?? "");
  return subject !== null && subject.canRead && !subject.isCommand;
}

function reported(sample: Sample): LastValue {
  return { value: sample.value, raw: sample.raw, ext: sample.ext, time: sample.time, origin: "reported" };
}

function readBy(record: RequestRecord | undefined): LastValue | null {
  const response = record?.response;
  if (!record || !response) return null;
  const raw = isRaw(record) && typeof response.value === "string" ? response.value : null;
  return { value: raw === null ? response.value : null, raw, ext: response.ext ?? null, time: response.time, origin: "read" };
}

function later(one: LastValue | null, other: LastValue | null): LastValue | null {
  if (one === null || other === null) return one ?? other;
  return Date.parse(one.time) > Date.parse(other.time) ? one : other;
}

function wishOf(record: RequestRecord | undefined, seen: LastValue | null): Wish | null {
  if (!record?.response) return null;
  const form = isRaw(record) ? "raw" : "decoded";
  const value = record.request.value ?? null;
  return { value, form, time: record.response.time, by: record.by, state: stateOf(value, form, record.response.time, seen) };
}

function stateOf(value: unknown, form: Form, time: string, seen: LastValue | null): Wish["state"] {
  if (seen === null || Date.parse(seen.time) < Date.parse(time)) return "open";
  const told = form === "raw" ? seen.raw : seen.value;
  if (told === null || told === undefined) return "unknown";
  return isSame(told, form === "raw" ? String(value ?? "").toLowerCase() : value) ? "met" : "unmet";
}

/** Whether two JSON values are equal, whatever the order of their fields. What was left out of an object that is
 * written gets a default: only what was given is compared. */
function isSame(told: unknown, wanted: unknown): boolean {
  if (Array.isArray(told) && Array.isArray(wanted)) {
    return told.length === wanted.length && told.every((each, index) => isSame(each, wanted[index]));
  }
  if (isObject(told) && isObject(wanted)) {
    return Object.entries(wanted).every(([name, value]) => isSame(told[name], value));
  }
  return told === wanted;
}
