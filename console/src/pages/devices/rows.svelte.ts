/** The rows of the list: read page by page, and kept up to date where somebody looks. */
import { type Schemas, api, requireBody } from "../../api/client";
import { PagedList } from "../../api/paged-list.svelte";
import type { Filter, Sort } from "../../filtering/filters";
import { batchPerFrame } from "../../live/frames";
import { type LiveEvent, live } from "../../live/socket.svelte";

export type Device = Schemas["Device"];

export interface Row {
  readonly device: Device;
  /** It is not in the fleet any more; its row stays until the list is read anew. */
  readonly isForgotten: boolean;
}

const PAGE = 100;
/** The most that the service tells at once. */
const MOST_AT_ONCE = 1000;
/** Who scrolled that far is better served by a filter, and browsers cannot show lists of any height. */
export const ENOUGH = 20_000;

export class Rows {
  readonly pages = new PagedList<Row>();

  #watched: ReadonlySet<string> = new Set();
  /** Watched, and not read since then: something may have happened before. */
  #unread = new Set<string>();
  /** What was told while rows were read again: it is newer than what was read. */
  #told = new Set<string>();
  #reading: AbortController | null = null;
  #gatherer = batchPerFrame((events) => this.#apply(events));
  #unlisten = (): void => undefined;

  /** Read the list from its beginning: so many rows, or a page. */
  async ask(filter: Filter, sort: Sort, rows = PAGE): Promise<void> {
    const first = Math.min(Math.max(Math.ceil(rows / PAGE), 1) * PAGE, ENOUGH);
    // With other orders than that of ids a device may come twice while things change.
    let seen = new Set<string>();
    await this.pages.start(async (token, signal) => {
      if (token === undefined) seen = new Set();
      let left = token === undefined ? first : PAGE;
      const items: Row[] = [];
      let next = token ?? null;
      // Who comes back to a place far down sees the rows when they are all there: none moves meanwhile.
      do {
        const query = {
          ...filter,
          ...(sort === "id" ? {} : { Sort: sort }),
          ...(next === null ? {} : { NextToken: next }),
          MaxResults: Math.min(left, MOST_AT_ONCE),
          Include: "live" as const,
        };
        const page: Schemas["DevicePage"] = requireBody(await api.GET("/api/v1/devices", { params: { query }, signal }));
        for (const device of page.items) {
          if (!seen.has(device.id)) items.push({ device, isForgotten: false });
          seen.add(device.id);
        }
        left -= page.items.length;
        next = page.nextToken;
      } while (next !== null && left > 0);
      return { items, nextToken: next };
    });
  }

  /** The next page, unless there are enough. */
  async more(): Promise<void> {
    // What failed is tried again when the reader says so, not with every turn of the wheel.
    if (this.pages.items.length < ENOUGH && this.pages.problem === null) await this.pages.loadMore();
  }

  /** Hear of these devices, and of no others. */
  watch(ids: readonly string[]): void {
    const before = this.#watched;
    const unlisten = this.#unlisten;
    this.#watched = new Set(ids);
    this.#unread = new Set(ids.filter((id) => !before.has(id) || this.#unread.has(id)));
    this.#unlisten =
      ids.length === 0
        ? () => undefined
        : live.subscribe({
            filter: { Types: ["device"], Ids: ids },
            onEvent: (event) => this.#gatherer.add(event),
            onResync: () => {
              this.#unread = new Set(this.#watched);
              void this.catchUp();
            },
          });
    // The new ones are heard before the old ones end: of those that are in both nothing is missed.
    unlisten();
    void this.catchUp();
  }

  /** Read again what may have changed before it was watched. While the reader wants no changes, it waits. */
  async catchUp(): Promise<void> {
    if (live.state !== "live" || this.#unread.size === 0) return;
    this.#reading?.abort();
    const reading = new AbortController();
    this.#reading = reading;
    const ids = [...this.#unread];
    this.#told.clear();
    try {
      const query = { Ids: ids, MaxResults: ids.length, Include: "live" as const };
      const page = requireBody(await api.GET("/api/v1/devices", { params: { query }, signal: reading.signal }));
      if (this.#reading !== reading) return;
      const found = new Map(page.items.map((device) => [device.id, device]));
      const asked = new Set(ids.filter((id) => !this.#told.has(id)));
      for (const id of ids) this.#unread.delete(id);
      this.pages.update((row) => (asked.has(row.device.id) ? renewed(row, found.get(row.device.id)) : row));
    } catch {
      // The rows stay as they are; the next event of each, or the next look, brings what is new.
    } finally {
      if (this.#reading === reading) this.#reading = null;
    }
  }

  stop(): void {
    this.pages.stop();
    this.#reading?.abort();
    this.#gatherer.stop();
    this.#unlisten();
  }

  #apply(events: readonly LiveEvent[]): void {
    // The service tells a device as its list does, or that it was forgotten.
    const news = new Map(events.map(({ data }) => [String(data["id"]), data as Partial<Device> & { forgotten?: true }]));
    for (const id of news.keys()) this.#told.add(id);
    this.pages.update((row) => {
      const told = news.get(row.device.id);
      if (told === undefined) return row;
      return renewed(row, told.forgotten ? undefined : { ...row.device, ...told });
    });
  }
}

function renewed(row: Row, device: Device | undefined): Row {
  return device === undefined ? { ...row, isForgotten: true } : { device, isForgotten: false };
}
