/** Recording of a survey point: the user stays at a place with a device for a minute. */
import { type Schemas, api, describeError, requireBody } from "../../../../api/client";
import { clock } from "../../../../clock.svelte";
import type { Point } from "../../../../floors/geometry";
import { formatField } from "../../../../floors/meters";
import { parsePoint, roundMeters } from "../anchors/place-editor.svelte";

export const RECORDING_MS = 60_000;

interface Recorded {
  readonly device: string;
  readonly floor: number;
  readonly point: Point;
  readonly since: number;
}

export class Recording {
  /** Device that is carried; null until one is chosen. */
  device = $state.raw<{ readonly id: string; readonly name: string } | null>(null);
  x = $state("");
  y = $state("");
  readonly point = $derived(parsePoint(this.x, this.y));
  /** Point that is being recorded or saved. */
  recorded = $state.raw<Recorded | null>(null);
  isSaving = $state(false);
  problem = $state<string | null>(null);
  /** End of a recording that could not be saved; null otherwise. */
  #until = $state<number | null>(null);

  readonly isRunning = $derived(this.recorded !== null && this.#until === null);
  readonly elapsed = $derived(this.recorded === null ? 0 : Math.min(RECORDING_MS, Math.max(0, clock.now - this.recorded.since)));

  constructor(readonly siteId: string) {}

  /** Fill in a point of the plan. During a recording the place stays as it is. */
  pick(point: Point): void {
    if (this.recorded !== null) return;
    this.x = formatField(point.x);
    this.y = formatField(point.y);
  }

  /** Forget the point that was entered: it was on a floor that is no longer shown. */
  clearPoint(): void {
    this.x = this.y = "";
  }

  /** Return the point that is recorded, or else the entered one, if it is on the floor that is shown. */
  findPoint(floor: number | undefined): Point | null {
    if (this.recorded === null) return this.point;
    return this.recorded.floor === floor ? this.recorded.point : null;
  }

  start(floor: number): void {
    if (this.device === null || this.point === null || this.recorded !== null) return;
    this.problem = null;
    this.#until = null;
    const point = { x: roundMeters(this.point.x), y: roundMeters(this.point.y) };
    this.recorded = { device: this.device.id, floor, point, since: clock.read() };
  }

  cancel(): void {
    this.recorded = null;
    this.#until = null;
    this.problem = null;
  }

  /** Save the point with what was recorded so far. Return null if it was not saved; it can be saved again then. */
  async save(): Promise<Schemas["SurveyPoint"] | null> {
    const { recorded } = this;
    if (recorded === null || this.isSaving) return null;
    const until = (this.#until ??= Math.min(clock.read(), recorded.since + RECORDING_MS));
    const { device, floor, point, since } = recorded;
    const body = { device, floor, ...point, from: new Date(since).toISOString(), to: new Date(until).toISOString() };
    this.isSaving = true;
    this.problem = null;
    try {
      const params = { path: { site_id: this.siteId } };
      const saved = requireBody(await api.POST("/api/v1/sites/{site_id}/survey", { params, body }));
      this.cancel();
      this.clearPoint();
      return saved;
    } catch (error) {
      this.problem = describeError(error);
      return null;
    } finally {
      this.isSaving = false;
    }
  }
}
