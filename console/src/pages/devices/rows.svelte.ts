/** Rows of the device list: loaded page by page, and kept up to date while they are visible. */
import { type Schemas, api, requireBody } from "../../api/client";
import { PagedList } from "../../api/paged-list.svelte";
import type { Filter, Sort } from "../../filtering/filters";
import { batchPerFrame } from "../../live/frames";
import { type LiveEvent, live } from "../../live/socket.svelte";

export type Device = Schemas["Device"];

export interface Row {
  readonly device: Device;
  /** Whether the device was deleted; its row stays until the list is loaded again. */
  readonly isDeleted: boolean;
}

const PAGE_SIZE = 100;
/** Largest page that the service returns. */
const MAX_PAGE_SIZE = 1000;
/** Maximum number of rows: beyond it a filter serves better, and browsers limit the height of an element. */
export const MAX_ROWS = 20_000;

/** Loaded rows of the list, with live updates for the visible ones. */
export class Rows {
  readonly pages = new PagedList<Row>();

  #subscribed: ReadonlySet<string> = new Set();
  /** Subscribed rows that were not loaded since then: they may have changed before. */
  #outdated = new Set<string>();
  /** Devices with an event since rows were requested again: the event is newer than the response. */
  #changed = new Set<string>();
  #loading: AbortController | null = null;
  #frames = batchPerFrame((events) => this.#apply(events));
  #unsubscribe = (): void => undefined;

  /** Load the list from its beginning, up to the given number of rows. */
  async load(filter: Filter, sort: Sort, rows = PAGE_SIZE): Promise<void> {
    const first = Math.min(Math.max(Math.ceil(rows / PAGE_SIZE), 1) * PAGE_SIZE, MAX_ROWS);
    // Sorted by another field than the id, a device may appear twice while values change.
    let loadedIds = new Set<string>();
    await this.pages.start(async (token, signal) => {
      if (token === undefined) loadedIds = new Set();
      let remaining = token === undefined ? first : PAGE_SIZE;
      const items: Row[] = [];
      let next = token ?? null;
      // Load all rows before showing any, so that none moves when the user returns to a position far down.
      do {
        const query = {
          ...filter,
          ...(sort === "id" ? {} : { Sort: sort }),
          ...(next === null ? {} : { NextToken: next }),
          MaxResults: Math.min(remaining, MAX_PAGE_SIZE),
          Include: "live" as const,
        };
        const page: Schemas["DevicePage"] = requireBody(await api.GET("/api/v1/devices", { params: { query }, signal }));
        for (const device of page.items) {
          if (!loadedIds.has(device.id)) items.push({ device, isDeleted: false });
          loadedIds.add(device.id);
        }
        remaining -= page.items.length;
        next = page.nextToken;
      } while (next !== null && remaining > 0);
      return { items, nextToken: next };
    });
  }

  /** Load the next page, up to the maximum number of rows. */
  async loadMore(): Promise<void> {
    // After a failure the user retries with a button, not with each scroll.
    if (this.pages.items.length < MAX_ROWS && this.pages.problem === null) await this.pages.loadMore();
  }

  /** Subscribe to these devices only. */
  watch(ids: readonly string[]): void {
    const previous = this.#subscribed;
    const unsubscribe = this.#unsubscribe;
    this.#subscribed = new Set(ids);
    this.#outdated = new Set(ids.filter((id) => !previous.has(id) || this.#outdated.has(id)));
    this.#unsubscribe =
      ids.length === 0
        ? () => undefined
        : live.subscribe({
            filter: { Types: ["device"], Ids: ids },
            onEvent: (event) => this.#frames.add(event),
            onResync: () => {
              this.#outdated = new Set(this.#subscribed);
              void this.catchUp();
            },
          });
    // Subscribe before unsubscribing, so that no event of a device in both is missed.
    unsubscribe();
    void this.catchUp();
  }

  /** Load subscribed rows that may have changed before. Does nothing while live updates are paused. */
  async catchUp(): Promise<void> {
    if (live.state !== "live" || this.#outdated.size === 0) return;
    this.#loading?.abort();
    const loading = new AbortController();
    this.#loading = loading;
    const ids = [...this.#outdated];
    this.#changed.clear();
    try {
      const query = { Ids: ids, MaxResults: ids.length, Include: "live" as const };
      const page = requireBody(await api.GET("/api/v1/devices", { params: { query }, signal: loading.signal }));
      if (this.#loading !== loading) return;
      const byId = new Map(page.items.map((device) => [device.id, device]));
      const unchanged = new Set(ids.filter((id) => !this.#changed.has(id)));
      for (const id of ids) this.#outdated.delete(id);
      this.pages.update((row) => (unchanged.has(row.device.id) ? updateRow(row, byId.get(row.device.id)) : row));
    } catch {
      // Rows stay unchanged until the next event or the next call.
    } finally {
      if (this.#loading === loading) this.#loading = null;
    }
  }

  stop(): void {
    this.pages.stop();
    this.#loading?.abort();
    this.#frames.stop();
    this.#unsubscribe();
  }

  #apply(events: readonly LiveEvent[]): void {
    // The event holds a device as in the list, or reports its deletion.
    const changes = new Map(events.map(({ data }) => [String(data["id"]), data as Partial<Device> & { forgotten?: true }]));
    for (const id of changes.keys()) this.#changed.add(id);
    this.pages.update((row) => {
      const change = changes.get(row.device.id);
      if (change === undefined) return row;
      return updateRow(row, change.forgotten ? undefined : { ...row.device, ...change });
    });
  }
}

function updateRow(row: Row, device: Device | undefined): Row {
  return device === undefined ? { ...row, isDeleted: true } : { device, isDeleted: false };
}
