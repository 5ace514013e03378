/** Table of the properties of a device: the last value reported or read, and the last value written. */
import type { Schemas } from "../../../api/client";
import type { RequestRecord } from "../../../requests/request.svelte";
import type { LastValue } from "../../../requests/last-value";
import { type Form, getPropertyKey, parseProperty } from "../../../requests/property";
import { isRaw, isRead, isWrite } from "../../../requests/request-text";
import { isObject } from "../../../json";

type Sample = Schemas["Sample"];

/** Value that was written last, and whether a later value of the device confirms it. */
export interface WrittenValue {
  readonly value: unknown;
  readonly form: Form;
  readonly time: string;
  readonly by: string;
  /** "open": no value since the write. "unknown": the later value has another form and cannot be compared. */
  readonly state: "open" | "met" | "unmet" | "unknown";
}

/** Row of the table, one for each property. */
export interface PropertyRow {
  /** Identifier in hex, or the name if the identifier is unknown. */
  readonly key: string;
  readonly name: string | null;
  /** Last value that was reported or read; null if there is none. */
  readonly seen: LastValue | null;
  /** Last value that was written; null if there is none. */
  readonly written: WrittenValue | null;
}

/** Build a row for each property, sorted by identifier. Records come newest first. */
export function buildRows(samples: ReadonlyMap<string, Sample>, records: readonly RequestRecord[]): readonly PropertyRow[] {
  const reads = findNewestByProperty(records.filter(isRead));
  const writes = findNewestByProperty(records.filter((record) => isWrite(record) && isReadable(record)));
  const keys = new Set([...samples.keys(), ...reads.keys(), ...writes.keys()]);
  return [...keys].sort().map((key) => {
    const sample = samples.get(key);
    const seen = pickLater(sample ? fromSample(sample) : null, fromReadResponse(reads.get(key)));
    return { key, name: parseProperty(key)?.entry?.name ?? sample?.name ?? null, seen, written: buildWrittenValue(writes.get(key), seen) };
  });
}

/** Return the newest sample of each property. Samples with an implausible time are ignored. */
export function mergeSamples(current: ReadonlyMap<string, Sample>, added: Iterable<Sample>): ReadonlyMap<string, Sample> {
  const newestByKey = new Map(current);
  for (const sample of added) {
    const key = sample.identifier ?? sample.name;
    if (key === null || sample.kind !== "property" || sample.clock !== null) continue;
    const previous = newestByKey.get(key);
    if (previous === undefined || Date.parse(previous.time) <= Date.parse(sample.time)) newestByKey.set(key, sample);
  }
  return newestByKey;
}

/** Return the newest successful request for each property. */
function findNewestByProperty(records: readonly RequestRecord[]): ReadonlyMap<string, RequestRecord> {
  const newestByKey = new Map<string, RequestRecord>();
  for (const record of records) {
    const key = getPropertyKey(record.request.identifier ?? "");
    if (record.response?.status === 0 && !newestByKey.has(key)) newestByKey.set(key, record);
  }
  return newestByKey;
}

/** Return whether a written property can be read back: a write-only property is never reported. */
function isReadable(record: RequestRecord): boolean {
  const subject = parseProperty(record.request.identifier ?? "");
  return subject !== null && subject.canRead && !subject.isCommand;
}

function fromSample(sample: Sample): LastValue {
  return { value: sample.value, raw: sample.raw, ext: sample.ext, time: sample.time, origin: "reported" };
}

function fromReadResponse(record: RequestRecord | undefined): LastValue | null {
  const response = record?.response;
  if (!record || !response) return null;
  const raw = isRaw(record) && typeof response.value === "string" ? response.value : null;
  return { value: raw === null ? response.value : null, raw, ext: response.ext ?? null, time: response.time, origin: "read" };
}

function pickLater(one: LastValue | null, other: LastValue | null): LastValue | null {
  if (one === null || other === null) return one ?? other;
  return Date.parse(one.time) > Date.parse(other.time) ? one : other;
}

function buildWrittenValue(record: RequestRecord | undefined, seen: LastValue | null): WrittenValue | null {
  if (!record?.response) return null;
  const form = isRaw(record) ? "raw" : "decoded";
  const value = record.request.value ?? null;
  return { value, form, time: record.response.time, by: record.by, state: compareWritten(value, form, record.response.time, seen) };
}

function compareWritten(value: unknown, form: Form, time: string, seen: LastValue | null): WrittenValue["state"] {
  if (seen === null || Date.parse(seen.time) < Date.parse(time)) return "open";
  const actual = form === "raw" ? seen.raw : seen.value;
  if (actual === null || actual === undefined) return "unknown";
  return matchesWritten(actual, form === "raw" ? String(value ?? "").toLowerCase() : value) ? "met" : "unmet";
}

/** Return whether a reported value equals a written one, whatever the order of their fields. Fields that the written
 * object leaves out get a default and are not compared. */
function matchesWritten(actual: unknown, expected: unknown): boolean {
  if (Array.isArray(actual) && Array.isArray(expected)) {
    return actual.length === expected.length && actual.every((each, index) => matchesWritten(each, expected[index]));
  }
  if (isObject(actual) && isObject(expected)) {
    return Object.entries(expected).every(([name, value]) => matchesWritten(actual[name], value));
  }
  return actual === expected;
}
