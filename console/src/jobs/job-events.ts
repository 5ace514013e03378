/** What live events tell of jobs, for whoever lists them. */
import type { LiveEvent } from "../live/socket.svelte";
import type { Job, JobState } from "./states";

export interface JobEvents {
  /** Each as it was told last, by its id. */
  readonly changed: ReadonlyMap<string, Job>;
  /** The ids of those that were deleted: nothing else is told of them. */
  readonly deleted: ReadonlySet<string>;
}

export function collectJobEvents(events: readonly LiveEvent[]): JobEvents {
  const changed = new Map<string, Job>();
  const deleted = new Set<string>();
  for (const { data } of events) {
    // The service promises that an event holds the job as REST shows it, or its id and that it was deleted.
    const job = data as unknown as Job;
    if (data["deleted"] === true) deleted.add(job.id);
    else changed.set(job.id, job);
  }
  for (const id of deleted) changed.delete(id);
  return { changed, deleted };
}

/** Jobs are numbered as they are made. */
export function parseJobNumber(job: Pick<Job, "id">): number {
  return Number(job.id.replace(/^job-/, ""));
}

/** The filters of the list: each stands for states that one looks for together. */
export const STATE_GROUPS = {
  running: ["IN_PROGRESS", "CANCELING"],
  paused: ["PAUSED"],
  waiting: ["CREATED", "PENDING_APPROVAL", "SCHEDULED"],
  over: ["COMPLETED", "CANCELED"],
} as const satisfies Record<string, readonly JobState[]>;

export type StateGroup = keyof typeof STATE_GROUPS;
