/** Address of the page of a site: floor, part of the page, rows of the list, selected device, time range of its playback,
 * and what the coverage shows. */
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
  /** Whether the list of devices has only those on the floor that is shown. */
  readonly isFloorOnly = $derived(this.#query.get("rows") === "floor");
  readonly range = $derived(RANGE_NAMES.find((name) => name === this.#query.get("playback")) ?? null);
  /** ISO time at which playback ends; null for now. */
  readonly until = $derived(toIsoTime(this.#query.get("until")));
  readonly measure = $derived(MEASURES.find((name) => name === this.#query.get("measure")) ?? "anchors");
  readonly level = $derived(LEVELS.find((name) => name === this.#query.get("level")) ?? "any");

  constructor(readonly page: PageAddress) {}

  withFloor(floor: number): string {
    return this.#format(withParam(this.#query, "floor", String(floor)));
  }

  /** Show a floor without a history entry. */
  showFloor(floor: number): void {
    this.page.replaceQuery(withParam(this.#query, "floor", String(floor)));
  }

  withRows(isFloorOnly: boolean): string {
    return this.#format(withParam(this.#query, "rows", isFloorOnly ? "floor" : null));
  }

  withPart(part: Part): string {
    return this.#format(withParam(withoutParams(this.#query, "place"), "view", part === "devices" ? null : part));
  }

  /** Return the address that shows a device on its floor. */
  withDevice(device: string, floor: number): string {
    const query = withoutParams(this.#query, "view", "playback", "until", "place");
    return this.#format(withParam(withParam(query, "floor", String(floor)), "device", device));
  }

  withoutDevice(): string {
    return this.#format(withoutParams(this.#query, "device", "playback", "until"));
  }

  withZone(zone: string): string {
    return this.#format(withParam(this.#query, "zone", zone));
  }

  /** Return the address with a playback of a time range that ends at an ISO time, or now; without a range, with none. */
  withPlayback(range: Range | null, until: string | null): string {
    const query = withParam(this.#query, "playback", range);
    return this.#format(withParam(query, "until", range && until));
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

/** Return the time of a parameter; null without one, or if it is invalid. */
function toIsoTime(text: string | null): string | null {
  const time = Date.parse(text ?? "");
  return Number.isNaN(time) ? null : new Date(time).toISOString();
}
