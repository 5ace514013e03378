/** List of the executions of a job: loaded page by page, with live updates for the visible rows. Rows keep their places,
 * whatever their state becomes. */
import { type Schemas, api, requireBody } from "../../../api/client";
import { PagedList } from "../../../api/paged-list.svelte";
import { batchPerFrame } from "../../../live/frames";
import { type LiveEvent, live } from "../../../live/socket.svelte";
import type { Filter } from "./filters";

export type Execution = Schemas["Execution"];

const PAGE_SIZE = 50;
/** Rows after which the list stops loading more: beyond this a filter helps more than scrolling. */
const MAX_ROWS = 2000;

export class ExecutionList {
  readonly pages = new PagedList<Execution>();

  #visibleIds: readonly string[] = [];
  /** Ids of devices with a live event since the current refresh started: the event is newer than the refresh. */
  #changedIds = new Set<string>();
  #refreshing: AbortController | null = null;
  #eventBuffer = batchPerFrame((events) => this.#applyEvents(events));
  #unlisten = (): void => undefined;

  /** `queueUpdate` applies a change of rows together with the summary of the job of the same moment. */
  constructor(
    readonly job: string,
    readonly queueUpdate: (update: () => void) => void,
  ) {}

  async load(filter: Filter): Promise<void> {
    const path = { job_id: this.job };
    await this.pages.start(async (token, signal) => {
      const query = { ...filter, MaxResults: PAGE_SIZE, ...(token && { NextToken: token }) };
      return requireBody(await api.GET("/api/v1/jobs/{job_id}/executions", { params: { path, query }, signal }));
    });
  }

  /** Whether the list has reached MAX_ROWS although the service has more executions. */
  get isAtLimit(): boolean {
    return this.pages.hasMore && this.pages.items.length >= MAX_ROWS;
  }

  /** Subscribe to live events of these devices, in place of the devices subscribed before. */
  subscribe(ids: readonly string[]): void {
    const unlisten = this.#unlisten;
    this.#visibleIds = ids;
    this.#unlisten =
      ids.length === 0
        ? () => undefined
        : live.subscribe({
            filter: { Types: ["execution"], Jobs: [this.job], Ids: ids },
            onEvent: (event) => this.#eventBuffer.add(event),
            onResync: () => void this.refreshVisible(),
          });
    // The new subscription starts before the old one ends, so no event is missed for devices in both.
    unlisten();
    void this.refreshVisible();
  }

  /** Reload the visible rows: they may have changed before they became visible, and no live event reports what a device
   * waits for. */
  async refreshVisible(): Promise<void> {
    const Ids = [...this.#visibleIds];
    if (live.state !== "live" || Ids.length === 0) return;
    this.#refreshing?.abort();
    const refreshing = new AbortController();
    this.#refreshing = refreshing;
    this.#changedIds.clear();
    try {
      const params = { path: { job_id: this.job }, query: { Ids, MaxResults: Ids.length } };
      const page = requireBody(await api.GET("/api/v1/jobs/{job_id}/executions", { params, signal: refreshing.signal }));
      if (this.#refreshing !== refreshing) return;
      this.queueUpdate(() => this.#updateRows(page.items.filter((each) => !this.#changedIds.has(each.deviceId))));
    } catch {
      // The rows stay unchanged; the next live event or refresh updates them.
    } finally {
      if (this.#refreshing === refreshing) this.#refreshing = null;
    }
  }

  stop(): void {
    this.pages.stop();
    this.#refreshing?.abort();
    this.#refreshing = null;
    this.#eventBuffer.stop();
    this.#unlisten();
  }

  #applyEvents(events: readonly LiveEvent[]): void {
    // The service guarantees that the event contains the execution as REST returns it.
    const changed = events.map((event) => event.data as unknown as Execution);
    for (const each of changed) this.#changedIds.add(each.deviceId);
    this.queueUpdate(() => this.#updateRows(changed));
  }

  #updateRows(executions: readonly Execution[]): void {
    const byDevice = new Map(executions.map((each) => [each.deviceId, each]));
    this.pages.update((row) => byDevice.get(row.deviceId) ?? row);
  }
}
