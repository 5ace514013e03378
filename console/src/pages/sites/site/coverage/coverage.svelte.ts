/** Expected coverage of the floor that is shown. */
import { type Schemas, api, requireBody } from "../../../../api/client";
import { Resource } from "../../../../api/resource.svelte";
import type { Point } from "../../../../floors/geometry";
import { findCell } from "./classes";

export class Coverage {
  readonly answer = new Resource<Schemas["CoverageAnswer"]>();
  readonly floor = $derived(this.answer.value?.coverage ?? null);
  /** Cell that the user has picked; null for none. */
  cell = $state<number | null>(null);

  constructor(readonly siteId: string) {}

  /** Load the coverage of a floor. Readings below a level in dBm do not count; null: what anchors receive. */
  async load(floor: number, minRssi: number | null): Promise<void> {
    const params = {
      path: { site_id: this.siteId, floor: String(floor) },
      query: { ...(minRssi !== null && { MinRssi: minRssi }) },
    };
    const isOther = this.floor !== null && this.floor.floor !== floor;
    if (isOther) this.answer.value = null;
    await this.answer.load(async (signal) =>
      requireBody(await api.GET("/api/v1/sites/{site_id}/floors/{floor}/coverage", { params, signal })),
    );
    this.cell = null;
  }

  /** Pick the cell at a point of the floor. */
  pick(point: Point): void {
    this.cell = this.floor && findCell(this.floor, point);
  }
}
