/** The list of jobs: read page by page, and kept up to date as jobs go on. Rows stay where they are; jobs that were made
 * since, or have come into a state that is looked for, wait until somebody wants to see them. */
import { SvelteSet } from "svelte/reactivity";

import { api, requireBody } from "../../api/client";
import { type FetchPage, PagedList } from "../../api/paged-list.svelte";
import { STATE_GROUPS, type StateGroup, collectJobEvents, parseJobNumber } from "../../jobs/job-events";
import { type Job, type JobState, isFinished } from "../../jobs/states";
import { batchPerFrame } from "../../live/frames";
import { type LiveEvent, live } from "../../live/socket.svelte";

async function readJob(id: string, signal: AbortSignal): Promise<Job> {
  return requireBody(await api.GET("/api/v1/jobs/{job_id}", { params: { path: { job_id: id } }, signal }));
}

export class JobList {
  readonly pages = new PagedList<Job>();
  /** Jobs that belong between those that are listed, since the list was read. */
  readonly added = new SvelteSet<string>();

  #states: readonly JobState[] = [];
  #looking: AbortController | null = null;
  /** Jobs of which something newer was told since that began. */
  #told = new Set<string>();

  /** Read it from its beginning: jobs of a group, or all. */
  async ask(group: StateGroup | null): Promise<void> {
    this.#states = group === null ? [] : STATE_GROUPS[group];
    this.added.clear();
    await this.pages.start(this.#fetch());
  }

  /** Hear what becomes of jobs, until the returned function is called. */
  watch(): () => void {
    const gatherer = batchPerFrame((events) => this.#apply(events));
    const unlisten = live.subscribe({
      filter: { Types: ["job"] },
      onEvent: (event) => gatherer.add(event),
      onResync: () => void this.#look(),
    });
    return () => {
      unlisten();
      gatherer.stop();
      this.#looking?.abort();
      this.pages.stop();
    };
  }

  #fetch(): FetchPage<Job> {
    const State = [...this.#states];
    return async (token, signal) => {
      const query = { ...(State.length > 0 && { State }), ...(token && { NextToken: token }) };
      return requireBody(await api.GET("/api/v1/jobs", { params: { query }, signal }));
    };
  }

  #apply(events: readonly LiveEvent[]): void {
    const { changed, deleted } = collectJobEvents(events);
    for (const id of [...changed.keys(), ...deleted]) this.#told.add(id);
    this.#drop(deleted);
    this.#take(changed);
  }

  #drop(gone: ReadonlySet<string>): void {
    if (gone.size === 0) return;
    this.pages.remove(({ id }) => gone.has(id));
    for (const id of gone) this.added.delete(id);
  }

  /** News may have been missed: the newest jobs are looked at again, whatever their states, and older ones that were not
   * over when they were last seen. */
  async #look(): Promise<void> {
    this.#looking?.abort();
    const looking = new AbortController();
    this.#looking = looking;
    this.#told.clear();
    const { signal } = looking;
    try {
      const { items, nextToken } = requireBody(await api.GET("/api/v1/jobs", { signal }));
      const news = new Map(items.map((job) => [job.id, job]));
      const gone = new Set<string>();
      const oldest = nextToken === null ? 0 : Math.min(...items.map(parseJobNumber));
      for (const job of this.pages.items) {
        if (news.has(job.id)) continue;
        // Of the newest jobs those that are not told any more were deleted.
        if (parseJobNumber(job) > oldest) gone.add(job.id);
        else if (!isFinished(job)) news.set(job.id, await readJob(job.id, signal));
      }
      for (const id of this.#told) {
        news.delete(id);
        gone.delete(id);
      }
      if (this.#looking !== looking) return;
      this.#drop(gone);
      this.#take(news);
    } catch {
      // What is shown stays; the next event of each job brings what is new.
    }
  }

  #take(news: ReadonlyMap<string, Job>): void {
    this.pages.update((job) => news.get(job.id) ?? job);
    if (!this.pages.isFresh) return;
    const listed = new Set(this.pages.items.map(({ id }) => id));
    const last = this.pages.items.at(-1);
    const oldest = this.pages.hasMore && last ? parseJobNumber(last) : 0;
    for (const job of news.values()) {
      const fits = this.#states.length === 0 || this.#states.includes(job.state);
      if (fits && !listed.has(job.id) && parseJobNumber(job) > oldest) this.added.add(job.id);
      else this.added.delete(job.id);
    }
  }
}
