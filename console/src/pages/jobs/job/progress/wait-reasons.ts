/** Texts for what a job waits for, and for what its queued devices wait for, with their number. */
import { ACTIVE, type Job, countOf } from "../../../../jobs/states";
import { en } from "../../../../text/en";
import { count, moment } from "../../../../text/format";
import type { Summary } from "../live-job.svelte";

const words = en.job.waits;

export interface JobWait {
  readonly text: string;
  /** Whether the job waits for an action of a user. */
  readonly isUrgent: boolean;
}

/** Return what a job, or the rest of its devices, waits for; null: for nothing. */
export function describeJobWait(job: Job): JobWait | null {
  switch (job.state) {
    case "CREATED":
      return { text: words.created, isUrgent: true };
    case "PENDING_APPROVAL":
      return { text: words.approval, isUrgent: true };
    case "SCHEDULED":
      return { text: job.startAt === null ? words.scheduledSoon : words.scheduled(moment(job.startAt)), isUrgent: false };
    case "PAUSED":
      return { text: words.paused[job.pauseReason ?? "USER"], isUrgent: true };
    case "CANCELING":
      return { text: words.canceling(count(countOf(job.counts, [...ACTIVE, "QUEUED"]))), isUrgent: false };
    case "IN_PROGRESS":
      return describeRunningWait(job);
    default:
      return null;
  }
}

function describeRunningWait(job: Job): JobWait | null {
  const staged = countOf(job.counts, ["STAGED"]);
  if (job.stage && job.appliedAt === null && staged > 0) return { text: words.staged(count(staged)), isUrgent: true };
  const index = job.waveStates.findIndex((wave) => wave.soaksUntil);
  const soaking = job.waveStates[index];
  if (soaking?.soaksUntil) {
    return { text: words.soaking(soaking.name ?? en.job.waves.name(count(index + 1)), moment(soaking.soaksUntil)), isUrgent: false };
  }
  const isStuck = countOf(job.counts, ACTIVE) === 0 && countOf(job.counts, ["QUEUED"]) > 0;
  return isStuck ? { text: words.stuck, isUrgent: false } : null;
}

/** Return what the queued devices of a running job wait for, one line per reason. In other states the whole job waits, as
 * described by `describeJobWait`. */
export function describeQueueWaits(job: Job, summary: Summary | null): readonly string[] {
  if (job.state !== "IN_PROGRESS") return [];
  return Object.entries(summary?.waiting ?? {}).map(([keyword, devices]) =>
    isKnownKeyword(keyword) ? words.words[keyword](count(devices)) : words.other(count(devices), keyword),
  );
}

function isKnownKeyword(keyword: string): keyword is keyof typeof words.words {
  return Object.hasOwn(words.words, keyword);
}
