/** Number of devices that match a filter, counted repeatedly. The count of an old filter is never shown for a new
 * one. */
import { type Schemas, api, requireBody } from "../api/client";
import { Resource } from "../api/resource.svelte";
import { live } from "../live/socket.svelte";
import { en } from "../text/en";
import type { Filter } from "./filters";

export type Summary = Schemas["Summary"];

const COUNT_INTERVAL = 5000;
const IDLE_FACTOR = 20;
/** Fleet size up to which an inexact count is shown without "about". */
const EXACT_UP_TO = 10_000;

export async function countDevices(filter: Filter, signal: AbortSignal): Promise<Summary> {
  return requireBody(await api.GET("/api/v1/devices/summary", { params: { query: filter }, signal }));
}

/** Mark a number of a summary as approximate, if it is inexact and the fleet is large. */
export function markApproximate(text: string, summary: Summary): string {
  return summary.exact || summary.total <= EXACT_UP_TO ? text : en.devices.approximately(text);
}

/** Return the milliseconds until the next count. A fleet that is slow to count is counted less often, so that it is
 * idle most of the time. */
export function computeCountDelay(took: number, least: number): number {
  return Math.max(least, IDLE_FACTOR * took);
}

export class DeviceCount {
  readonly loaded = new Resource<Summary>();
  /** Number of devices added since the list was read. */
  added = $derived.by(() => Math.max(0, (this.loaded.value?.total ?? 0) - (this.#listedTotal ?? Infinity)));

  #listedTotal = $state<number | null>(null);
  /** Filter being counted, a new object per query; null: late responses are discarded. */
  #filter: Filter | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;

  get value(): Summary | null {
    return this.loaded.value;
  }

  /** Discard the counts, when the filter changes. */
  reset(): void {
    this.stop();
    this.loaded.value = null;
    this.loaded.problem = null;
    this.#listedTotal = null;
  }

  /** Count the devices of a list that was just read, and repeat it. */
  async start(filter: Filter): Promise<void> {
    this.#filter = { ...filter };
    this.#listedTotal = null;
    await this.#count();
  }

  stop(): void {
    this.#filter = null;
    clearTimeout(this.#timer);
    this.loaded.stop();
  }

  async #count(): Promise<void> {
    clearTimeout(this.#timer);
    const filter = this.#filter;
    if (filter === null) return;
    const startedAt = performance.now();
    let isAnswered = false;
    await this.loaded.load(async (signal) => {
      const summary = await countDevices(filter, signal);
      isAnswered = true;
      return summary;
    });
    if (filter !== this.#filter) return;
    if (isAnswered) this.#listedTotal ??= this.loaded.value?.total ?? null;
    this.#schedule(computeCountDelay(performance.now() - startedAt, COUNT_INTERVAL));
  }

  #schedule(delay: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      if (live.state === "live" && !document.hidden) void this.#count();
      else this.#schedule(COUNT_INTERVAL);
    }, delay);
  }
}
