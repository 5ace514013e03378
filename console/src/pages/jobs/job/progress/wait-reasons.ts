/** Texts for what a job waits for, and for what its queued devices wait for, with their number. */
import { ACTIVE_STATES, type Job, countExecutions } from "../../../../jobs/states";
import { en } from "../../../../text/en";
import { formatCount, formatDateTime } from "../../../../text/format";
import type { Summary } from "../live-job.svelte";

const words = en.job.waitingFor;

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
      return { text: job.startAt === null ? words.scheduledSoon : words.scheduled(formatDateTime(job.startAt)), isUrgent: false };
    case "PAUSED":
      return { text: words.paused[job.pauseReason ?? "USER"], isUrgent: true };
    case "CANCELING":
      return { text: words.canceling(formatCount(countExecutions(job.counts, [...ACTIVE_STATES, "QUEUED"]))), isUrgent: false };
    case "IN_PROGRESS":
      return describeRunningWait(job);
    default:
      return null;
  }
}

function describeRunningWait(job: Job): JobWait | null {
  const staged = countExecutions(job.counts, ["STAGED"]);
  if (job.stage && job.appliedAt === null && staged > 0) return { text: words.staged(formatCount(staged)), isUrgent: true };
  const index = job.waveStates.findIndex((wave) => wave.soaksUntil);
  const soaking = job.waveStates[index];
  if (soaking?.soaksUntil) {
    return { text: words.soaking(soaking.name ?? en.job.waves.name(formatCount(index + 1)), formatDateTime(soaking.soaksUntil)), isUrgent: false };
  }
  const isStuck = countExecutions(job.counts, ACTIVE_STATES) === 0 && countExecutions(job.counts, ["QUEUED"]) > 0;
  return isStuck ? { text: words.stuck, isUrgent: false } : null;
}

/** Return what the queued devices of a running job wait for, one line per reason. In other states the whole job waits, as
 * described by `describeJobWait`. */
export function describeQueueWaits(job: Job, summary: Summary | null): readonly string[] {
  if (job.state !== "IN_PROGRESS") return [];
  return Object.entries(summary?.waiting ?? {}).map(([keyword, devices]) =>
    isKnownKeyword(keyword) ? words.reasons[keyword](formatCount(devices)) : words.other(formatCount(devices), keyword),
  );
}

function isKnownKeyword(keyword: string): keyword is keyof typeof words.reasons {
  return Object.hasOwn(words.reasons, keyword);
}
