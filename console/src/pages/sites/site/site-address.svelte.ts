/** Address of the page of a site: floor, part of the page, selected device, and time range of its playback. */
import type { PageAddress } from "../../../page-address.svelte";
import { withParam, withoutParams } from "../../../query";
import { RANGE_NAMES, type Range } from "./devices/playback.svelte";

export type Part = "devices" | "anchors" | "survey" | "zones";
export const PARTS: readonly Part[] = ["devices", "anchors", "survey", "zones"];

export class SiteAddress {
  readonly #query = $derived.by(() => this.page.query);
  /** Number of the floor as text; null for the default. */
  readonly floor = $derived(this.#query.get("floor"));
  readonly part = $derived(PARTS.find((name) => name === this.#query.get("view")) ?? "devices");
  /** Id of the selected device. */
  readonly device = $derived(this.#query.get("device"));
  readonly range = $derived(RANGE_NAMES.find((name) => name === this.#query.get("playback")) ?? null);

  constructor(readonly page: PageAddress) {}

  withFloor(floor: number): string {
    return this.#format(withParam(this.#query, "floor", String(floor)));
  }

  withPart(part: Part): string {
    return this.#format(withParam(this.#query, "view", part === "devices" ? null : part));
  }

  /** Return the address that shows a device on its floor. */
  withDevice(device: string, floor: number): string {
    const query = withoutParams(this.#query, "view", "playback");
    return this.#format(withParam(withParam(query, "floor", String(floor)), "device", device));
  }

  withoutDevice(): string {
    return this.#format(withoutParams(this.#query, "device", "playback"));
  }

  withRange(range: Range | null): string {
    return this.#format(withParam(this.#query, "playback", range));
  }

  #format(query: URLSearchParams): string {
    const text = query.toString();
    return text ? `${this.page.path}?${text}` : this.page.path;
  }
}
