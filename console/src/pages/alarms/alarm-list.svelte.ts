/** List of alarms: loaded page by page and updated by live events. Rows keep their places, also when their alarm ends;
 * alarms that match the filter since the list was loaded are only counted until the user reloads it. */
import { SvelteMap } from "svelte/reactivity";

import { collectAlarms, pickNewer } from "../../alarms/alarm-events";
import type { Alarm } from "../../alarms/alarm-styles";
import { api, requireBody } from "../../api/client";
import { type Page, PagedList } from "../../api/paged-list.svelte";
import { batchPerFrame } from "../../live/frames";
import { live } from "../../live/socket.svelte";
import { type AlarmFilter, comesBefore, matchesFilter } from "./filters";

export class AlarmList {
  readonly pages = new PagedList<Alarm>();
  /** Number of alarms that match the filter but are not listed yet. */
  readonly newCount = $derived.by(() => this.#countNew());

  #filter = $state.raw<AlarmFilter>({ State: [] });
  /** Latest state of the alarms that changed since the list was loaded. */
  readonly #changed = new SvelteMap<string, Alarm>();
  #refreshing: AbortController | null = null;

  /** Load the first page of the alarms that match a filter. */
  async load(filter: AlarmFilter): Promise<void> {
    this.#refreshing?.abort();
    this.#filter = filter;
    this.#changed.clear();
    await this.pages.start((token, signal) => fetchPage(filter, token, signal));
  }

  /** Load the list again, with the new alarms. */
  async reload(): Promise<void> {
    await this.load(this.#filter);
  }

  /** Subscribe to live events of alarms. Return a function that ends the subscription and all requests. */
  subscribe(): () => void {
    const eventBuffer = batchPerFrame((events) => this.#apply(collectAlarms(events)));
    const unlisten = live.subscribe({
      filter: { Types: ["alarm"] },
      onEvent: (event) => eventBuffer.add(event),
      onResync: () => void this.refresh(),
    });
    return () => {
      unlisten();
      eventBuffer.stop();
      this.#refreshing?.abort();
      this.pages.stop();
    };
  }

  #countNew(): number {
    if (!this.pages.isFresh) return 0;
    const listed = new Set(this.pages.items.map(({ id }) => id));
    const last = this.pages.hasMore ? this.pages.items.at(-1) : undefined;
    return [...this.#changed.values()].filter(
      (alarm) => matchesFilter(alarm, this.#filter) && !listed.has(alarm.id) && (last === undefined || comesBefore(alarm, last)),
    ).length;
  }

  #apply(changed: ReadonlyMap<string, Alarm>): void {
    for (const [id, alarm] of changed) this.#changed.set(id, pickNewer(this.#changed.get(id) ?? alarm, alarm));
    this.pages.update((alarm) => pickNewer(alarm, changed.get(alarm.id)));
  }

  /** Show alarms that the user has changed. */
  update(alarms: readonly Alarm[]): void {
    this.#apply(new Map(alarms.map((alarm) => [alarm.id, alarm])));
  }

  /** Refresh after alarms may have changed without an event: load the first page, and the listed ones not in it. */
  async refresh(): Promise<void> {
    this.#refreshing?.abort();
    const refreshing = new AbortController();
    this.#refreshing = refreshing;
    const { signal } = refreshing;
    const filter = this.#filter;
    try {
      const { items, nextToken } = await fetchPage(filter, undefined, signal);
      const changed = new Map(items.map((alarm) => [alarm.id, alarm]));
      const last = nextToken === null ? undefined : items.at(-1);
      for (const alarm of this.pages.items) {
        const isBelow = last !== undefined && comesBefore(last, alarm);
        if (changed.has(alarm.id) || isBelow || !matchesFilter(alarm, filter)) continue;
        changed.set(alarm.id, await fetchAlarm(alarm.id, signal));
      }
      if (this.#refreshing === refreshing && !signal.aborted) this.#apply(changed);
    } catch {
      // The rows stay unchanged; the next live event of each alarm updates its row.
    }
  }
}

async function fetchPage(filter: AlarmFilter, token: string | undefined, signal: AbortSignal): Promise<Page<Alarm>> {
  const query = { ...filter, ...(token && { NextToken: token }) };
  return requireBody(await api.GET("/api/v1/alarms", { params: { query }, signal }));
}

async function fetchAlarm(id: string, signal: AbortSignal): Promise<Alarm> {
  return requireBody(await api.GET("/api/v1/alarms/{alarm_id}", { params: { path: { alarm_id: id } }, signal }));
}
