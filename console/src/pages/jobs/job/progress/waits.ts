/** What a job waits for, as a sentence, and what its queued devices wait for, counted. */
import { ACTIVE_STATES, type Job, countExecutions } from "../../../../jobs/states";
import { en } from "../../../../text/en";
import { formatCount, formatDateTime } from "../../../../text/format";
import type { Summary } from "../watched.svelte";

const words = en.job.waitingFor;

export interface Wait {
  readonly text: string;
  /** Whether somebody has to do something. */
  readonly isUrgent: boolean;
}

/** Why nothing more happens at the moment, or not all that could; null: it just goes on. */
export function waitOf(job: Job): Wait | null {
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
      return running(job);
    default:
      return null;
  }
}

function running(job: Job): Wait | null {
  const staged = countExecutions(job.counts, ["STAGED"]);
  if (job.stage && job.appliedAt === null && staged > 0) return { text: words.staged(formatCount(staged)), isUrgent: true };
  const place = job.waveStates.findIndex((wave) => wave.soaksUntil);
  const soaking = job.waveStates[place];
  if (soaking?.soaksUntil) {
    return { text: words.soaking(soaking.name ?? en.job.waves.name(formatCount(place + 1)), formatDateTime(soaking.soaksUntil)), isUrgent: false };
  }
  const isStuck = countExecutions(job.counts, ACTIVE_STATES) === 0 && countExecutions(job.counts, ["QUEUED"]) > 0;
  return isStuck ? { text: words.stuck, isUrgent: false } : null;
}

/** What queued devices wait for, each in a line; what holds for the whole job is said by its own sentence. */
export function queuedFor(job: Job, summary: Summary | null): readonly string[] {
  if (job.state !== "IN_PROGRESS") return [];
  return Object.entries(summary?.waiting ?? {}).map(([word, many]) =>
    isKnown(word) ? words.reasons[word](formatCount(many)) : words.other(formatCount(many), word),
  );
}

function isKnown(word: string): word is keyof typeof words.reasons {
  return Object.hasOwn(words.reasons, word);
}
