/** Address of the page of a site: floor, part of the page, selected device, time range of its playback, and what the
 * coverage shows. */
import type { PageAddress } from "../../../page-address.svelte";
import { withParam, withoutParams } from "../../../query";
import { MEASURES, type Measure } from "./coverage/classes";
import { LEVELS, type Level } from "./coverage/levels";
import { RANGE_NAMES, type Range } from "./devices/playback.svelte";

export type Part = "devices" | "anchors" | "survey" | "zones" | "coverage";
export const PARTS: readonly Part[] = ["devices", "anchors", "survey", "zones", "coverage"];

export class SiteAddress {
  readonly #query = $derived.by(() => this.page.query);
  /** Number of the floor as text; null for the default. */
  readonly floor = $derived(this.#query.get("floor"));
  readonly part = $derived(PARTS.find((name) => name === this.#query.get("view")) ?? "devices");
  /** Id of the selected device. */
  readonly device = $derived(this.#query.get("device"));
  /** Id of a device whose place is to be entered. */
  readonly placing = $derived(this.#query.get("place"));
  /** Id of the zone whose visits are shown. */
  readonly zone = $derived(this.#query.get("zone"));
  readonly range = $derived(RANGE_NAMES.find((name) => name === this.#query.get("playback")) ?? null);
  readonly measure = $derived(MEASURES.find((name) => name === this.#query.get("measure")) ?? "anchors");
  readonly level = $derived(LEVELS.find((name) => name === this.#query.get("level")) ?? "any");

  constructor(readonly page: PageAddress) {}

  withFloor(floor: number): string {
    return this.#format(withParam(this.#query, "floor", String(floor)));
  }

  withPart(part: Part): string {
    return this.#format(withParam(withoutParams(this.#query, "place"), "view", part === "devices" ? null : part));
  }

  /** Return the address that shows a device on its floor. */
  withDevice(device: string, floor: number): string {
    const query = withoutParams(this.#query, "view", "playback", "place");
    return this.#format(withParam(withParam(query, "floor", String(floor)), "device", device));
  }

  withoutDevice(): string {
    return this.#format(withoutParams(this.#query, "device", "playback"));
  }

  withZone(zone: string): string {
    return this.#format(withParam(this.#query, "zone", zone));
  }

  withRange(range: Range | null): string {
    return this.#format(withParam(this.#query, "playback", range));
  }

  withCoverage(measure: Measure, level: Level): string {
    const query = withParam(this.#query, "measure", measure === "anchors" ? null : measure);
    return this.#format(withParam(query, "level", level === "any" ? null : level));
  }

  #format(query: URLSearchParams): string {
    const text = query.toString();
    return text ? `${this.page.path}?${text}` : this.page.path;
  }
}
