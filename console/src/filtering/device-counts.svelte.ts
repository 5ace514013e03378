/** Numbers of devices for several filters. They are counted one after the other, since a large fleet is slow to count,
 * and again regularly until `stop` is called; after an error, also when the service is reachable again. */
import { SvelteMap } from "svelte/reactivity";

import { describeError } from "../api/client";
import { cancelRetry, retryOnReconnect } from "../api/reconnect-retries";
import { live } from "../live/socket.svelte";
import { type Summary, countDevices, computeCountDelay } from "./device-count.svelte";
import type { Filter } from "./filters";

const COUNT_INTERVAL = 15_000;

export class DeviceCounts {
  /** Error of the last count. */
  problem = $state<string | null>(null);

  #summaries = new SvelteMap<string, Summary>();
  #filters: ReadonlyMap<string, Filter> = new Map();
  /** Keys of the filters counted in this round. */
  #countedKeys = new Set<string>();
  #pending: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;
  readonly #retry = (): void => void this.count();

  /** Return the summary of a filter; null until it is counted. */
  get(filter: Filter): Summary | null {
    return this.#summaries.get(getKey(filter)) ?? null;
  }

  /** Count these filters from now on. A running count continues, and known filters are not counted before their time. */
  start(filters: readonly Filter[]): void {
    this.#filters = new Map(filters.map((filter) => [getKey(filter), filter]));
    void this.count();
  }

  /** Count the filters that this round has not counted yet, such as after an error. */
  async count(): Promise<void> {
    if (this.#pending !== null || this.#nextFilter() === undefined) return;
    cancelRetry(this.#retry);
    const counting = new AbortController();
    this.#pending = counting;
    const startedAt = performance.now();
    try {
      for (let next = this.#nextFilter(); next !== undefined; next = this.#nextFilter()) {
        const [key, filter] = next;
        const summary = await countDevices(filter, counting.signal);
        if (this.#pending !== counting) return;
        this.#countedKeys.add(key);
        if (live.state !== "paused" || !this.#summaries.has(key)) this.#summaries.set(key, summary);
      }
      this.problem = null;
    } catch (error) {
      if (this.#pending !== counting) return;
      this.problem = describeError(error);
      retryOnReconnect(this.#retry);
    }
    this.#pending = null;
    this.#schedule(computeCountDelay(performance.now() - startedAt, COUNT_INTERVAL));
  }

  stop(): void {
    clearTimeout(this.#timer);
    cancelRetry(this.#retry);
    this.#filters = new Map();
    this.#pending?.abort();
    this.#pending = null;
  }

  #nextFilter(): readonly [string, Filter] | undefined {
    return [...this.#filters].find(([key]) => !this.#countedKeys.has(key));
  }

  #schedule(delay: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      if (live.state !== "live" || document.hidden) return this.#schedule(COUNT_INTERVAL);
      this.#countedKeys.clear();
      void this.count();
    }, delay);
  }
}

function getKey(filter: Filter): string {
  return JSON.stringify(filter);
}
