/** Expected coverage of the floor that is shown. */
import { type Schemas, api, requireBody } from "../../../../api/client";
import { Resource } from "../../../../api/resource.svelte";
import type { Point } from "../../../../floors/geometry";
import { formatField } from "../../../../floors/meters";
import { parsePoint } from "../anchors/place-editor.svelte";
import { findCell } from "./classes";

export class Coverage {
  readonly answer = new Resource<Schemas["CoverageAnswer"]>();
  readonly floor = $derived(this.answer.value?.coverage ?? null);
  /** Coordinates of the place whose values are shown, typed or picked on the plan. */
  x = $state("");
  y = $state("");
  readonly point = $derived(parsePoint(this.x, this.y));
  /** Cell of that place; null without one, and where devices cannot be. */
  readonly cell = $derived(this.floor && this.point && findCell(this.floor, this.point));
  /** Floor and level of the answer, or of its request. */
  #shown: readonly [number, number | null] | null = null;

  constructor(readonly siteId: string) {}

  /** Load the coverage of a floor. Readings below a level in dBm do not count; null: what anchors receive. The answer
   * for another floor or level is dropped at once: it would be taken for this one. */
  async load(floor: number, minRssi: number | null): Promise<void> {
    if (this.#shown?.[0] !== floor) this.x = this.y = "";
    if (this.#shown?.[0] !== floor || this.#shown[1] !== minRssi) this.answer.value = null;
    this.#shown = [floor, minRssi];
    const params = {
      path: { site_id: this.siteId, floor: String(floor) },
      query: { ...(minRssi !== null && { MinRssi: minRssi }) },
    };
    await this.answer.load(async (signal) =>
      requireBody(await api.GET("/api/v1/sites/{site_id}/floors/{floor}/coverage", { params, signal })),
    );
  }

  /** Fill in a point of the plan. */
  pick(point: Point): void {
    this.x = formatField(point.x);
    this.y = formatField(point.y);
  }
}
