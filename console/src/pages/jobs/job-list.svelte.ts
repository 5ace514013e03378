/** List of jobs: loaded page by page and updated by live events. Rows keep their places; jobs that were created since the
 * list was loaded, or have entered a state of the filter, are only counted until the user reloads the list. */
import { SvelteSet } from "svelte/reactivity";

import { api, requireBody } from "../../api/client";
import { type FetchPage, PagedList } from "../../api/paged-list.svelte";
import { STATE_GROUPS, type StateGroup, collectJobEvents, parseJobNumber } from "../../jobs/job-events";
import { type Job, type JobState, isFinished } from "../../jobs/states";
import { batchPerFrame } from "../../live/frames";
import { type LiveEvent, live } from "../../live/socket.svelte";

async function fetchJob(id: string, signal: AbortSignal): Promise<Job> {
  return requireBody(await api.GET("/api/v1/jobs/{job_id}", { params: { path: { job_id: id } }, signal }));
}

export class JobList {
  readonly pages = new PagedList<Job>();
  /** Ids of jobs that match the filter but are not listed yet. */
  readonly added = new SvelteSet<string>();

  /** States of the filter; empty: all states. */
  #states: readonly JobState[] = [];
  #refreshing: AbortController | null = null;
  /** Ids of jobs with a live event since the current refresh started: the event is newer than the refresh. */
  #changedIds = new Set<string>();

  /** Load the first page of the jobs in a group of states; null: of all jobs. */
  async load(group: StateGroup | null): Promise<void> {
    this.#states = group === null ? [] : STATE_GROUPS[group];
    this.added.clear();
    await this.pages.start(this.#createFetch());
  }

  /** Subscribe to live events of jobs. Return a function that ends the subscription and all requests. */
  subscribe(): () => void {
    const eventBuffer = batchPerFrame((events) => this.#applyEvents(events));
    const unlisten = live.subscribe({
      filter: { Types: ["job"] },
      onEvent: (event) => eventBuffer.add(event),
      onResync: () => void this.#refresh(),
    });
    return () => {
      unlisten();
      eventBuffer.stop();
      this.#refreshing?.abort();
      this.pages.stop();
    };
  }

  #createFetch(): FetchPage<Job> {
    const State = [...this.#states];
    return async (token, signal) => {
      const query = { ...(State.length > 0 && { State }), ...(token && { NextToken: token }) };
      return requireBody(await api.GET("/api/v1/jobs", { params: { query }, signal }));
    };
  }

  #applyEvents(events: readonly LiveEvent[]): void {
    const { changed, deleted } = collectJobEvents(events);
    for (const id of [...changed.keys(), ...deleted]) this.#changedIds.add(id);
    this.#removeJobs(deleted);
    this.#updateJobs(changed);
  }

  #removeJobs(deleted: ReadonlySet<string>): void {
    if (deleted.size === 0) return;
    this.pages.remove(({ id }) => deleted.has(id));
    for (const id of deleted) this.added.delete(id);
  }

  /** Refresh after live events may have been missed: load the newest jobs in any state, and the older listed jobs that
   * had not finished. */
  async #refresh(): Promise<void> {
    this.#refreshing?.abort();
    const refreshing = new AbortController();
    this.#refreshing = refreshing;
    this.#changedIds.clear();
    const { signal } = refreshing;
    try {
      const { items, nextToken } = requireBody(await api.GET("/api/v1/jobs", { signal }));
      const changed = new Map(items.map((job) => [job.id, job]));
      const deleted = new Set<string>();
      const oldest = nextToken === null ? 0 : Math.min(...items.map(parseJobNumber));
      for (const job of this.pages.items) {
        if (changed.has(job.id)) continue;
        // A listed job within the range of the newest jobs that is not among them was deleted.
        if (parseJobNumber(job) > oldest) deleted.add(job.id);
        else if (!isFinished(job)) changed.set(job.id, await fetchJob(job.id, signal));
      }
      for (const id of this.#changedIds) {
        changed.delete(id);
        deleted.delete(id);
      }
      if (this.#refreshing !== refreshing) return;
      this.#removeJobs(deleted);
      this.#updateJobs(changed);
    } catch {
      // The rows stay unchanged; the next live event of each job updates its row.
    }
  }

  /** Update listed jobs in place, and count changed jobs that match the filter but are not listed. */
  #updateJobs(changed: ReadonlyMap<string, Job>): void {
    this.pages.update((job) => changed.get(job.id) ?? job);
    if (!this.pages.isFresh) return;
    const listed = new Set(this.pages.items.map(({ id }) => id));
    const last = this.pages.items.at(-1);
    const oldest = this.pages.hasMore && last ? parseJobNumber(last) : 0;
    for (const job of changed.values()) {
      const isMatch = this.#states.length === 0 || this.#states.includes(job.state);
      if (isMatch && !listed.has(job.id) && parseJobNumber(job) > oldest) this.added.add(job.id);
      else this.added.delete(job.id);
    }
  }
}
