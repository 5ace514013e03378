/** The lines of measurements: one for each identifier, read for the time that is shown, and going on with what comes. */
import { api, requireBody } from "../../../api/client";
import { Resource } from "../../../api/resource.svelte";
import { Curve } from "../../../charts/curve";
import { parsePoints } from "../../../charts/points";
import { keyOf } from "./measurements.svelte";
import type { Span } from "./span.svelte";
import type { Sample } from "../samples";

/** Late samples are read together with others that are late. */
const LATE = 2000;

/** How many points there is room for. */
export type Resolution = () => number;

class Measurement {
  readonly answer = new Resource<Curve>();
  #late: ReturnType<typeof setTimeout> | undefined;

  constructor(
    readonly deviceId: string,
    readonly key: string,
    readonly span: Span,
    readonly resolution: Resolution,
  ) {}

  async load(): Promise<void> {
    this.#forgetLate();
    this.span.settle();
    const { from, to } = this.span;
    const Points = this.resolution();
    await this.answer.load(async (signal) => {
      const query = { Identifier: this.key, From: isoOf(from), To: isoOf(to), Points };
      const path = { device_id: this.deviceId };
      const answer = await api.GET("/api/v1/devices/{device_id}/series", { params: { path, query }, signal });
      return new Curve(parsePoints(requireBody(answer).items), (to - from) / Points, to);
    });
  }

  add(sample: Sample): void {
    const { value } = sample;
    const time = Date.parse(sample.time);
    if (typeof value !== "number" || sample.clock !== null) return;
    if (this.span.piece && time >= this.span.piece.to) return;
    this.answer.applyChange((curve) => curve.append(time, value, this.span.from) ?? this.#unchanged(curve));
  }

  stop(): void {
    this.#forgetLate();
    this.answer.stop();
  }

  /** A line into which a late sample does not fit is read again soon. */
  #unchanged(curve: Curve): Curve {
    this.#late ??= setTimeout(() => void this.load(), LATE);
    return curve;
  }

  #forgetLate(): void {
    clearTimeout(this.#late);
    this.#late = undefined;
  }
}

export class Curves {
  all = $state.raw<ReadonlyMap<string, Measurement>>(new Map());

  constructor(
    readonly deviceId: string,
    readonly span: Span,
    readonly resolution: Resolution,
  ) {}

  /** Why a line could not be read. */
  get problem(): string | null {
    return [...this.all.values()].find((each) => each.answer.problem)?.answer.problem ?? null;
  }

  /** Have a line for each of these, and read those that are new. */
  want(keys: readonly string[]): void {
    const missing = keys.filter((key) => !this.all.has(key));
    if (missing.length === 0) return;
    const made = missing.map((key) => new Measurement(this.deviceId, key, this.span, this.resolution));
    this.all = new Map([...this.all, ...made.map((each) => [each.key, each] as const)]);
    for (const each of made) void each.load();
  }

  /** All of them anew, as when another time is looked at. */
  async load(): Promise<void> {
    await Promise.all([...this.all.values()].map((each) => each.load()));
  }

  take(samples: readonly Sample[]): void {
    for (const sample of samples) {
      if (sample.kind === "measurement") this.all.get(keyOf(sample))?.add(sample);
    }
  }

  stop(): void {
    for (const each of this.all.values()) each.stop();
  }
}

function isoOf(time: number): string {
  return new Date(time).toISOString();
}
