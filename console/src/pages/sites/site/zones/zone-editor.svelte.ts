/** Zone that is being drawn: its corners are typed, or added on the plan. */
import { type Schemas, api } from "../../../../api/client";
import type { Corner, Point } from "../../../../floors/geometry";
import { formatField, parseMeters } from "../../../../floors/meters";
import { en } from "../../../../text/en";

const MIN_CORNERS = 3;
const MAX_CORNERS = 100;
const words = en.sites.zones;

export class ZoneEditor {
  isOpen = $state(false);
  /** Zone that is changed; null for a new one. */
  zone = $state.raw<Schemas["Zone"] | null>(null);
  /** Floor of the zone, also while another one is shown. */
  floor = $state(0);
  name = $state("");
  /** Corners as text, one on each line. */
  text = $state("");

  readonly #parsed = $derived(parseCorners(this.text));
  readonly fault = $derived.by(() => {
    const { corners, wrongLine } = this.#parsed;
    if (wrongLine !== null) return words.faultLine(wrongLine);
    if (corners.length < MIN_CORNERS) return words.few;
    return corners.length > MAX_CORNERS ? words.many : null;
  });

  constructor(readonly siteId: string) {}

  /** Begin to change a zone; null: to draw a new one on a floor. */
  open(zone: Schemas["Zone"] | null, floor: number): void {
    this.isOpen = true;
    this.zone = zone;
    this.floor = zone?.floor ?? floor;
    this.name = zone?.name ?? "";
    this.text = (zone?.polygon ?? []).map(formatCorner).join("\n");
  }

  close(): void {
    this.isOpen = false;
    this.zone = null;
  }

  /** Return the corners that can be read, if they are on a floor. */
  findCorners(floor: number | undefined): readonly Corner[] {
    return this.isOpen && this.floor === floor ? this.#parsed.corners : [];
  }

  /** Add a corner, unless it is on another floor. */
  pick({ x, y }: Point, floor: number | undefined): void {
    if (floor !== this.floor) return;
    const before = this.text.trimEnd();
    this.text = `${before}${before === "" ? "" : "\n"}${formatCorner([x, y])}`;
  }

  removeLast(): void {
    this.text = this.text.trimEnd().split("\n").slice(0, -1).join("\n");
  }

  /** Create or change the zone. */
  async save(): Promise<void> {
    const polygon = this.#parsed.corners.map(([x, y]) => [x, y] as [number, number]);
    const body = { name: this.name.trim(), floor: this.floor, polygon };
    if (this.zone === null) {
      await api.POST("/api/v1/sites/{site_id}/zones", { params: { path: { site_id: this.siteId } }, body });
    } else {
      const path = { site_id: this.siteId, zone_id: this.zone.id };
      await api.PUT("/api/v1/sites/{site_id}/zones/{zone_id}", { params: { path }, body });
    }
  }
}

function formatCorner([x, y]: Corner): string {
  return `${formatField(x)}, ${formatField(y)}`;
}

/** Parse corners such as "2, 3.5"; numbers with decimal commas are separated by a semicolon or a blank. */
function parseCorners(text: string): { readonly corners: readonly Corner[]; readonly wrongLine: number | null } {
  const corners: Corner[] = [];
  let wrongLine: number | null = null;
  for (const [index, line] of text.split("\n").entries()) {
    if (line.trim() === "") continue;
    const parts = line.includes(";") ? line.split(";") : line.trim().split(/\s/.test(line.trim()) ? /,?\s+/ : ",");
    const [x, y, ...more] = parts.filter((part) => part.trim() !== "").map(parseMeters);
    if (typeof x === "number" && typeof y === "number" && more.length === 0) corners.push([x, y]);
    else wrongLine ??= index + 1;
  }
  return { corners, wrongLine };
}
