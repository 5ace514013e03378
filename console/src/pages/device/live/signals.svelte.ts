/** How well each parent hears a device: read for the time that is shown, and going on with what comes. */
import { api, requireBody } from "../../../api/client";
import { Resource } from "../../../api/resource.svelte";
import { Curve } from "../../../charts/curve";
import { parsePoints } from "../../../charts/points";
import type { Resolution } from "./curves.svelte";
import type { Span } from "./span.svelte";
import type { Heard } from "../told";

type Parents = ReadonlyMap<string, Curve>;

export class Signals {
  readonly answer = new Resource<Parents>();
  /** Parents by their MACs, in the order of the answer; those that are heard of later come behind them. */
  readonly parents = $derived<Parents>(this.answer.value ?? new Map());

  constructor(
    readonly deviceId: string,
    readonly span: Span,
    readonly resolution: Resolution,
  ) {}

  async load(): Promise<void> {
    this.span.settle();
    const { from, to } = this.span;
    const Points = this.resolution();
    await this.answer.load(async (signal) => {
      const query = { From: new Date(from).toISOString(), To: new Date(to).toISOString(), Points };
      const params = { path: { device_id: this.deviceId }, query };
      const { items } = requireBody(await api.GET("/api/v1/devices/{device_id}/links", { params, signal }));
      const width = (to - from) / Points;
      return new Map(items.map((link) => [link.parent, new Curve(parsePoints(link.series), width, to)]));
    });
  }

  take(heard: readonly Heard[]): void {
    if (heard.length === 0 || this.span.piece !== null) return;
    this.answer.applyChange((parents) => {
      const now = new Map(parents);
      for (const { parent, rssi, time } of heard) {
        const curve = now.get(parent) ?? this.#begun();
        now.set(parent, curve.append(Date.parse(time), rssi, this.span.from) ?? curve);
      }
      return now;
    });
  }

  /** The line of a parent that was not heard of before. */
  #begun(): Curve {
    return new Curve([], (this.span.to - this.span.from) / this.resolution(), this.span.from);
  }
}
