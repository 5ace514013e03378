/** Job changes in live events. */
import type { LiveEvent } from "../live/socket.svelte";
import type { Job, JobState } from "./states";

export interface JobEvents {
  /** Latest state of each changed job, by id. */
  readonly changed: ReadonlyMap<string, Job>;
  /** Ids of deleted jobs: their events contain nothing else. */
  readonly deleted: ReadonlySet<string>;
}

export function collectJobEvents(events: readonly LiveEvent[]): JobEvents {
  const changed = new Map<string, Job>();
  const deleted = new Set<string>();
  for (const { data } of events) {
    // An event contains the job as in REST, or its id and `deleted`.
    const job = data as unknown as Job;
    if (data["deleted"] === true) deleted.add(job.id);
    else changed.set(job.id, job);
  }
  for (const id of deleted) changed.delete(id);
  return { changed, deleted };
}

/** Return the number of a job; numbers ascend with creation. */
export function parseJobNumber(job: Pick<Job, "id">): number {
  return Number(job.id.replace(/^job-/, ""));
}

/** Filters of the job list: groups of states. */
export const STATE_GROUPS = {
  running: ["IN_PROGRESS", "CANCELING"],
  paused: ["PAUSED"],
  waiting: ["CREATED", "PENDING_APPROVAL", "SCHEDULED"],
  over: ["COMPLETED", "CANCELED"],
} as const satisfies Record<string, readonly JobState[]>;

export type StateGroup = keyof typeof STATE_GROUPS;
