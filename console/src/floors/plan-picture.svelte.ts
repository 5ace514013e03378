/** Picture of a floor. Its download needs the token of the session, so it is shown from a blob. */
import { type Schemas, api, requireBody } from "../api/client";
import { Resource } from "../api/resource.svelte";

interface Picture {
  readonly blob: Blob;
  readonly url: string;
}

export class PlanPicture {
  readonly loaded = new Resource<Picture>();
  /** Address of the picture for the browser; null without one. */
  readonly url = $derived(this.loaded.value?.url ?? null);

  /** Load the picture of a floor, or none if the floor has no plan. */
  async load(siteId: string, floor: Schemas["Floor"]): Promise<void> {
    this.clear();
    if (floor.plan === null) return;
    await this.loaded.load(async (signal) => {
      const params = { path: { site_id: siteId, floor: String(floor.floor) } };
      const response = await api.GET("/api/v1/sites/{site_id}/floors/{floor}/plan", { params, signal, parseAs: "blob" });
      const blob = requireBody<unknown>(response) as Blob;
      return { blob, url: URL.createObjectURL(blob) };
    });
  }

  /** Release the picture and cancel its download. */
  clear(): void {
    this.loaded.stop();
    if (this.loaded.value) URL.revokeObjectURL(this.loaded.value.url);
    this.loaded.value = null;
    this.loaded.problem = null;
  }
}

/** Return the transformation from pixels of a picture to pixels of the map, for the attribute `transform` of SVG. */
export function formatTransform(
  { scale: metersPerPixel, rotation, originX, originY }: Schemas["PlanTransform"],
  view: { readonly scale: number; readonly left: number; readonly top: number },
): string {
  const factor = view.scale * metersPerPixel;
  const angle = (rotation * Math.PI) / 180;
  const [cos, sin] = [factor * Math.cos(angle), factor * Math.sin(angle)];
  const [right, down] = [(originX - view.left) * view.scale, (view.top - originY) * view.scale];
  return `matrix(${[cos, -sin, sin, cos, right, down].join(" ")})`;
}
