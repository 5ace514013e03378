/** What a device measures: of each identifier the newest values, and whether the last attempt failed. */
import { Resource } from "../../../api/resource.svelte";
import { computeUsualInterval } from "../../../charts/points";
import { type Sample, readSamples } from "../samples";

export interface Measured {
  /** Its identifier in hex, or its name where that is all that is known. */
  readonly key: string;
  readonly name: string | null;
  /** The newest sample that has a value; null: only failures are known. */
  readonly latest: Sample | null;
  /** The failure after which no value came. */
  readonly failure: Sample | null;
  /** Recent numbers, oldest first. */
  readonly recent: readonly (readonly [time: number, value: number])[];
  /** How far its samples are usually apart, in milliseconds. */
  readonly usual: number | null;
}

const FIRST = 200;
const KEPT = 100;
const KINDS: Sample["kind"][] = ["measurement", "measurement-error"];

export class Measurements {
  readonly answer = new Resource<readonly Measured[]>();
  readonly items = $derived(this.answer.value ?? []);

  constructor(readonly deviceId: string) {}

  async load(): Promise<void> {
    await this.answer.load(async (signal) => {
      const { items } = await readSamples(this.deviceId, KINDS, FIRST, signal);
      return arranged(gathered([], items.toReversed()), this.items);
    });
  }

  /** New samples, in the order in which they came. Tiles stay where they are; new ones come behind them. */
  take(samples: readonly Sample[]): void {
    const fresh = samples.filter(isBelieved);
    if (fresh.length > 0) this.answer.applyChange((items) => gathered(items, fresh), []);
  }
}

/** What was read, in the order of what is shown; what the answer does not go back to stays. */
function arranged(read: readonly Measured[], shown: readonly Measured[]): readonly Measured[] {
  const byKey = new Map(read.map((item) => [item.key, item]));
  const known = new Set(shown.map((item) => item.key));
  const unknown = read.filter((item) => !known.has(item.key)).sort((a, b) => (a.key < b.key ? -1 : 1));
  return [...shown.map((item) => byKey.get(item.key) ?? item), ...unknown];
}

function gathered(items: readonly Measured[], samples: readonly Sample[]): readonly Measured[] {
  const byKey = new Map(items.map((item) => [item.key, item]));
  for (const sample of samples.filter(isBelieved)) {
    const key = keyOf(sample);
    byKey.set(key, withSample(byKey.get(key) ?? nothing(key), sample));
  }
  return [...byKey.values()];
}

/** A measurement, at a time that can be. */
function isBelieved(sample: Sample): boolean {
  return KINDS.includes(sample.kind) && sample.clock === null;
}

export function keyOf(sample: Sample): string {
  return sample.identifier ?? sample.name ?? "";
}

function nothing(key: string): Measured {
  return { key, name: null, latest: null, failure: null, recent: [], usual: null };
}

function withSample(item: Measured, sample: Sample): Measured {
  const newest = item.latest?.time ?? "";
  const name = sample.name ?? item.name;
  if (sample.kind === "measurement-error") {
    const isNews = Date.parse(sample.time) > Math.max(timeOf(item.failure), timeOf(item.latest));
    return isNews ? { ...item, name, failure: sample } : item;
  }
  // A report may be told twice, and what was held back comes late: neither is the newest.
  if (newest !== "" && Date.parse(sample.time) <= Date.parse(newest)) return item;
  const value = sample.value;
  const point = [Date.parse(sample.time), typeof value === "number" ? value : 0] as const;
  const recent = typeof value === "number" ? [...item.recent, point].slice(-KEPT) : item.recent;
  const usual = computeUsualInterval(recent.slice(-9).map(([time]) => time));
  const isOver = timeOf(item.failure) <= Date.parse(sample.time);
  return { ...item, name, latest: sample, failure: isOver ? null : item.failure, recent, usual };
}

function timeOf(sample: Sample | null): number {
  return sample === null ? 0 : Date.parse(sample.time);
}
