/** The devices of a job: read page by page, and kept up to date where somebody looks. Rows stay where they are, whatever
 * becomes of them. */
import { type Schemas, api, requireBody } from "../../../api/client";
import { PagedList } from "../../../api/paged-list.svelte";
import { batchPerFrame } from "../../../live/frames";
import { type LiveEvent, live } from "../../../live/socket.svelte";
import type { Filter } from "./filters";

export type Execution = Schemas["Execution"];

const PAGE = 50;
/** Who scrolled that far is better served by a filter. */
const ENOUGH = 2000;

export class Executions {
  readonly pages = new PagedList<Execution>();

  #watched: readonly string[] = [];
  /** What was told while rows were read again: it is newer than what was read. */
  #told = new Set<string>();
  #reading: AbortController | null = null;
  #gatherer = batchPerFrame((events) => this.#apply(events));
  #unlisten = (): void => undefined;

  /** `together` shows rows along with what else the page says of the same moment. */
  constructor(
    readonly job: string,
    readonly together: (show: () => void) => void,
  ) {}

  async ask(filter: Filter): Promise<void> {
    const path = { job_id: this.job };
    await this.pages.start(async (token, signal) => {
      const query = { ...filter, MaxResults: PAGE, ...(token && { NextToken: token }) };
      return requireBody(await api.GET("/api/v1/jobs/{job_id}/executions", { params: { path, query }, signal }));
    });
  }

  get isEnough(): boolean {
    return this.pages.hasMore && this.pages.items.length >= ENOUGH;
  }

  /** Hear of these devices, and of no others. */
  watch(ids: readonly string[]): void {
    const unlisten = this.#unlisten;
    this.#watched = ids;
    this.#unlisten =
      ids.length === 0
        ? () => undefined
        : live.subscribe({
            filter: { Types: ["execution"], Jobs: [this.job], Ids: ids },
            onEvent: (event) => this.#gatherer.add(event),
            onResync: () => void this.catchUp(),
          });
    // The new ones are heard before the old ones end: of those that are in both nothing is missed.
    unlisten();
    void this.catchUp();
  }

  /** Read again what is in sight: it may have changed before it was, and what devices wait for is told by no event. */
  async catchUp(): Promise<void> {
    const Ids = [...this.#watched];
    if (live.state !== "live" || Ids.length === 0) return;
    this.#reading?.abort();
    const reading = new AbortController();
    this.#reading = reading;
    this.#told.clear();
    try {
      const params = { path: { job_id: this.job }, query: { Ids, MaxResults: Ids.length } };
      const page = requireBody(await api.GET("/api/v1/jobs/{job_id}/executions", { params, signal: reading.signal }));
      if (this.#reading !== reading) return;
      this.together(() => this.#show(page.items.filter((each) => !this.#told.has(each.deviceId))));
    } catch {
      // The rows stay as they are; the next event of each, or the next look, brings what is new.
    } finally {
      if (this.#reading === reading) this.#reading = null;
    }
  }

  stop(): void {
    this.pages.stop();
    this.#reading?.abort();
    this.#reading = null;
    this.#gatherer.stop();
    this.#unlisten();
  }

  #apply(events: readonly LiveEvent[]): void {
    // The service promises that the event holds the execution as REST shows it.
    const told = events.map((event) => event.data as unknown as Execution);
    for (const each of told) this.#told.add(each.deviceId);
    this.together(() => this.#show(told));
  }

  #show(executions: readonly Execution[]): void {
    const byDevice = new Map(executions.map((each) => [each.deviceId, each]));
    this.pages.update((row) => byDevice.get(row.deviceId) ?? row);
  }
}
