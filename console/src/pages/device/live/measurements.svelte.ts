/** Newest values of each measurement of a device, and whether the last attempt failed. */
import { Resource } from "../../../api/resource.svelte";
import { computeUsualInterval } from "../../../charts/points";
import { type Sample, readSamples } from "../samples";

/** State of one measurement. */
export interface MeasurementState {
  /** Identifier in hex, or the name if the identifier is unknown. */
  readonly key: string;
  readonly name: string | null;
  /** Newest sample with a value; null if there were only failures. */
  readonly latest: Sample | null;
  /** Failure since the newest value; null if there is none. */
  readonly failure: Sample | null;
  /** Recent numeric values, oldest first. */
  readonly recent: readonly (readonly [time: number, value: number])[];
  /** Usual time between two samples in milliseconds; null if unknown. */
  readonly usual: number | null;
}

const PAGE_SIZE = 200;
const MAX_RECENT = 100;
const KINDS: Sample["kind"][] = ["measurement", "measurement-error"];

/** All measurements of a device, in a stable order. */
export class Measurements {
  readonly resource = new Resource<readonly MeasurementState[]>();
  readonly items = $derived(this.resource.value ?? []);

  constructor(readonly deviceId: string) {}

  async load(): Promise<void> {
    await this.resource.load(async (signal) => {
      const { items } = await readSamples(this.deviceId, KINDS, PAGE_SIZE, signal);
      return keepOrder(addSamples([], items.toReversed()), this.items);
    });
  }

  /** Add new samples, in the order of their arrival. Tiles keep their places; new ones come last. */
  add(samples: readonly Sample[]): void {
    const accepted = samples.filter(isPlausibleMeasurement);
    if (accepted.length > 0) this.resource.applyChange((items) => addSamples(items, accepted), []);
  }
}

/** Return the loaded items in the order of the shown ones. Shown items that the response does not reach back to are
 * kept. */
function keepOrder(loaded: readonly MeasurementState[], shown: readonly MeasurementState[]): readonly MeasurementState[] {
  const byKey = new Map(loaded.map((item) => [item.key, item]));
  const shownKeys = new Set(shown.map((item) => item.key));
  const added = loaded.filter((item) => !shownKeys.has(item.key)).sort((a, b) => (a.key < b.key ? -1 : 1));
  return [...shown.map((item) => byKey.get(item.key) ?? item), ...added];
}

/** Return the items updated with samples. */
function addSamples(items: readonly MeasurementState[], samples: readonly Sample[]): readonly MeasurementState[] {
  const byKey = new Map(items.map((item) => [item.key, item]));
  for (const sample of samples.filter(isPlausibleMeasurement)) {
    const key = keyOf(sample);
    byKey.set(key, withSample(byKey.get(key) ?? createState(key), sample));
  }
  return [...byKey.values()];
}

/** Return whether a sample is a measurement with a plausible time. */
function isPlausibleMeasurement(sample: Sample): boolean {
  return KINDS.includes(sample.kind) && sample.clock === null;
}

export function keyOf(sample: Sample): string {
  return sample.identifier ?? sample.name ?? "";
}

function createState(key: string): MeasurementState {
  return { key, name: null, latest: null, failure: null, recent: [], usual: null };
}

function withSample(item: MeasurementState, sample: Sample): MeasurementState {
  const newest = item.latest?.time ?? "";
  const name = sample.name ?? item.name;
  if (sample.kind === "measurement-error") {
    const isNewest = Date.parse(sample.time) > Math.max(parseTime(item.failure), parseTime(item.latest));
    return isNewest ? { ...item, name, failure: sample } : item;
  }
  // A report can arrive twice or late (backfill): then it is not the newest.
  if (newest !== "" && Date.parse(sample.time) <= Date.parse(newest)) return item;
  const value = sample.value;
  const point = [Date.parse(sample.time), typeof value === "number" ? value : 0] as const;
  const recent = typeof value === "number" ? [...item.recent, point].slice(-MAX_RECENT) : item.recent;
  const usual = computeUsualInterval(recent.slice(-9).map(([time]) => time));
  const isResolved = parseTime(item.failure) <= Date.parse(sample.time);
  return { ...item, name, latest: sample, failure: isResolved ? null : item.failure, recent, usual };
}

function parseTime(sample: Sample | null): number {
  return sample === null ? 0 : Date.parse(sample.time);
}
