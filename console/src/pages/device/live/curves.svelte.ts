/** Curves of the measurements of a device, one for each identifier: loaded for the time span shown, continued with live
 * samples. */
import { api, requireBody } from "../../../api/client";
import { Resource } from "../../../api/resource.svelte";
import { Curve } from "../../../charts/curve";
import { parsePoints } from "../../../charts/points";
import { keyOf } from "./measurements.svelte";
import type { Span } from "./span.svelte";
import type { Sample } from "../samples";

/** Delay in milliseconds before a curve is loaded again for late samples, so that one request covers several. */
const LATE_RELOAD_DELAY = 2000;

/** Returns the number of points that can be drawn. */
export type Resolution = () => number;

/** Curve of one measurement. */
class MeasurementCurve {
  readonly resource = new Resource<Curve>();
  #reload: ReturnType<typeof setTimeout> | undefined;

  constructor(
    readonly deviceId: string,
    readonly key: string,
    readonly span: Span,
    readonly resolution: Resolution,
  ) {}

  async load(): Promise<void> {
    this.#cancelReload();
    this.span.moveToNow();
    const { from, to } = this.span;
    const Points = this.resolution();
    await this.resource.load(async (signal) => {
      const query = { Identifier: this.key, From: toIso(from), To: toIso(to), Points };
      const path = { device_id: this.deviceId };
      const response = await api.GET("/api/v1/devices/{device_id}/series", { params: { path, query }, signal });
      return new Curve(parsePoints(requireBody(response).items), (to - from) / Points, to);
    });
  }

  add(sample: Sample): void {
    const { value } = sample;
    const time = Date.parse(sample.time);
    if (typeof value !== "number" || sample.clock !== null) return;
    if (this.span.interval && time >= this.span.interval.to) return;
    this.resource.applyChange((curve) => curve.append(time, value, this.span.from) ?? this.#scheduleReload(curve));
  }

  stop(): void {
    this.#cancelReload();
    this.resource.stop();
  }

  /** Schedule a reload for a late sample that cannot be added, and return the curve unchanged. */
  #scheduleReload(curve: Curve): Curve {
    this.#reload ??= setTimeout(() => void this.load(), LATE_RELOAD_DELAY);
    return curve;
  }

  #cancelReload(): void {
    clearTimeout(this.#reload);
    this.#reload = undefined;
  }
}

/** All curves of a device, by identifier. */
export class Curves {
  all = $state.raw<ReadonlyMap<string, MeasurementCurve>>(new Map());

  constructor(
    readonly deviceId: string,
    readonly span: Span,
    readonly resolution: Resolution,
  ) {}

  /** Error of the first curve that could not be loaded; null if there is none. */
  get problem(): string | null {
    return [...this.all.values()].find((each) => each.resource.problem)?.resource.problem ?? null;
  }

  /** Load a curve for each key that has none yet. */
  ensure(keys: readonly string[]): void {
    const missing = keys.filter((key) => !this.all.has(key));
    if (missing.length === 0) return;
    const added = missing.map((key) => new MeasurementCurve(this.deviceId, key, this.span, this.resolution));
    this.all = new Map([...this.all, ...added.map((each) => [each.key, each] as const)]);
    for (const each of added) void each.load();
  }

  /** Load all curves again, for example for another time span. */
  async load(): Promise<void> {
    await Promise.all([...this.all.values()].map((each) => each.load()));
  }

  add(samples: readonly Sample[]): void {
    for (const sample of samples) {
      if (sample.kind === "measurement") this.all.get(keyOf(sample))?.add(sample);
    }
  }

  stop(): void {
    for (const each of this.all.values()) each.stop();
  }
}

function toIso(time: number): string {
  return new Date(time).toISOString();
}
