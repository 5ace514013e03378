/** How many devices there are of each sort. An old number is never shown for a new question. */
import { type Schemas, api, requireBody } from "../api/client";
import { Resource } from "../api/resource.svelte";
import { live } from "../live/socket.svelte";
import { en } from "../text/en";
import type { Filter } from "./filters";

export type Summary = Schemas["Summary"];

const EVERY = 5000;
const IDLE = 20;
/** Up to so many devices, what changed within the seconds since they were counted is not worth a word. */
const FEW = 10_000;

export async function countDevices(filter: Filter, signal: AbortSignal): Promise<Summary> {
  return requireBody(await api.GET("/api/v1/devices/summary", { params: { query: filter }, signal }));
}

/** A number of a summary, with a word of caution where it may be wrong by more than a moment brings. */
export function markApproximate(text: string, summary: Summary): string {
  return summary.exact || summary.total <= FEW ? text : en.devices.approximately(text);
}

/** Milliseconds until the next count. A fleet that takes long to count is counted less often: it shall be idle for many
 * times as long. */
export function computeCountDelay(took: number, least: number): number {
  return Math.max(least, IDLE * took);
}

export class DeviceCount {
  readonly loaded = new Resource<Summary>();
  /** How many devices came since the list was read. */
  added = $derived.by(() => Math.max(0, (this.loaded.value?.total ?? 0) - (this.#listed ?? Infinity)));

  #listed = $state<number | null>(null);
  /** What is counted, an object of its own for each question; null: nothing, and what comes late changes nothing. */
  #filter: Filter | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;

  get value(): Summary | null {
    return this.loaded.value;
  }

  /** Nothing is known: another question is being asked. */
  reset(): void {
    this.stop();
    this.loaded.value = null;
    this.loaded.problem = null;
    this.#listed = null;
  }

  /** Count what a list was just read of, and go on counting. */
  async start(filter: Filter): Promise<void> {
    this.#filter = { ...filter };
    this.#listed = null;
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
    const began = performance.now();
    let isAnswered = false;
    await this.loaded.load(async (signal) => {
      const summary = await countDevices(filter, signal);
      isAnswered = true;
      return summary;
    });
    if (filter !== this.#filter) return;
    if (isAnswered) this.#listed ??= this.loaded.value?.total ?? null;
    this.#later(computeCountDelay(performance.now() - began, EVERY));
  }

  #later(delay: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      if (live.state === "live" && !document.hidden) void this.#count();
      else this.#later(EVERY);
    }, delay);
  }
}
