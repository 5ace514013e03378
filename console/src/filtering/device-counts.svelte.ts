/** Numbers of devices for several filters. They are counted one after the other, since a large fleet is slow to count,
 * and again regularly until `stop` is called. */
import { SvelteMap } from "svelte/reactivity";

import { describeError } from "../api/client";
import { live } from "../live/socket.svelte";
import { type Summary, countDevices, computeCountDelay } from "./device-count.svelte";
import type { Filter } from "./filters";

const EVERY = 15_000;

export class DeviceCounts {
  /** Error of the last count. */
  problem = $state<string | null>(null);

  #known = new SvelteMap<string, Summary>();
  #wanted: ReadonlyMap<string, Filter> = new Map();
  /** Keys of the filters counted in this round. */
  #counted = new Set<string>();
  #counting: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Return the summary of a filter; null until it is counted. */
  get(filter: Filter): Summary | null {
    return this.#known.get(keyOf(filter)) ?? null;
  }

  /** Count these filters from now on. A running count continues, and known filters are not counted before their time. */
  start(filters: readonly Filter[]): void {
    this.#wanted = new Map(filters.map((filter) => [keyOf(filter), filter]));
    void this.count();
  }

  /** Count the filters that this round has not counted yet, such as after an error. */
  async count(): Promise<void> {
    if (this.#counting !== null || this.#next() === undefined) return;
    const counting = new AbortController();
    this.#counting = counting;
    const began = performance.now();
    try {
      for (let next = this.#next(); next !== undefined; next = this.#next()) {
        const [key, filter] = next;
        const summary = await countDevices(filter, counting.signal);
        if (this.#counting !== counting) return;
        this.#counted.add(key);
        if (live.state !== "paused" || !this.#known.has(key)) this.#known.set(key, summary);
      }
      this.problem = null;
    } catch (error) {
      if (this.#counting !== counting) return;
      this.problem = describeError(error);
    }
    this.#counting = null;
    this.#later(computeCountDelay(performance.now() - began, EVERY));
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#wanted = new Map();
    this.#counting?.abort();
    this.#counting = null;
  }

  #next(): readonly [string, Filter] | undefined {
    return [...this.#wanted].find(([key]) => !this.#counted.has(key));
  }

  #later(delay: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      if (live.state !== "live" || document.hidden) return this.#later(EVERY);
      this.#counted.clear();
      void this.count();
    }, delay);
  }
}

function keyOf(filter: Filter): string {
  return JSON.stringify(filter);
}
