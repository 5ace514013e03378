/** What live events tell of jobs, for whoever lists them. */
import type { LiveEvent } from "../live/socket.svelte";
import type { Job, JobState } from "./states";

export function jobIn({ data }: LiveEvent): Job {
  // The service promises that the event holds the job as REST shows it.
  return data as unknown as Job;
}

/** Jobs are numbered as they are made. */
export function numberOf(job: Pick<Job, "id">): number {
  return Number(job.id.replace(/^job-/, ""));
}

/** The filters of the list: each stands for states that one looks for together. */
export const GROUPS = {
  running: ["IN_PROGRESS", "CANCELING"],
  paused: ["PAUSED"],
  waiting: ["CREATED", "PENDING_APPROVAL", "SCHEDULED"],
  over: ["COMPLETED", "CANCELED"],
} as const satisfies Record<string, readonly JobState[]>;

export type Group = keyof typeof GROUPS;
