/** Signal strength of a device at each parent: loaded for the time span shown, continued with live reports. */
import { api, requireBody } from "../../../api/client";
import { Resource } from "../../../api/resource.svelte";
import { Curve } from "../../../charts/curve";
import { parsePoints } from "../../../charts/points";
import type { Resolution } from "./curves.svelte";
import type { Span } from "./span.svelte";
import type { SignalReport } from "../live-events";

type Parents = ReadonlyMap<string, Curve>;

export class Signals {
  readonly resource = new Resource<Parents>();
  /** Curves by the MAC of the parent, in the order of the response; parents heard later come last. */
  readonly parents = $derived<Parents>(this.resource.value ?? new Map());

  constructor(
    readonly deviceId: string,
    readonly span: Span,
    readonly resolution: Resolution,
  ) {}

  async load(): Promise<void> {
    this.span.moveToNow();
    const { from, to } = this.span;
    const Points = this.resolution();
    await this.resource.load(async (signal) => {
      const query = { From: new Date(from).toISOString(), To: new Date(to).toISOString(), Points };
      const params = { path: { device_id: this.deviceId }, query };
      const { items } = requireBody(await api.GET("/api/v1/devices/{device_id}/links", { params, signal }));
      const width = (to - from) / Points;
      return new Map(items.map((link) => [link.parent, new Curve(parsePoints(link.series), width, to)]));
    });
  }

  add(reports: readonly SignalReport[]): void {
    if (reports.length === 0 || this.span.interval !== null) return;
    this.resource.applyChange((parents) => {
      const updated = new Map(parents);
      for (const { parent, rssi, time } of reports) {
        const curve = updated.get(parent) ?? this.#createCurve();
        updated.set(parent, curve.append(Date.parse(time), rssi, this.span.from) ?? curve);
      }
      return updated;
    });
  }

  /** Create the curve of a parent that is not in the response. */
  #createCurve(): Curve {
    return new Curve([], (this.span.to - this.span.from) / this.resolution(), this.span.from);
  }
}
