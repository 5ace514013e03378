/** What a job waits for, as a sentence, and what its queued devices wait for, counted. */
import { ACTIVE, type Job, countOf } from "../../../../jobs/states";
import { en } from "../../../../text/en";
import { count, moment } from "../../../../text/format";
import type { Summary } from "../watched.svelte";

const words = en.job.waits;

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
      return { text: job.startAt === null ? words.scheduledSoon : words.scheduled(moment(job.startAt)), isUrgent: false };
    case "PAUSED":
      return { text: words.paused[job.pauseReason ?? "USER"], isUrgent: true };
    case "CANCELING":
      return { text: words.canceling(count(countOf(job.counts, [...ACTIVE, "QUEUED"]))), isUrgent: false };
    case "IN_PROGRESS":
      return running(job);
    default:
      return null;
  }
}

function running(job: Job): Wait | null {
  const staged = countOf(job.counts, ["STAGED"]);
  if (job.stage && job.appliedAt === null && staged > 0) return { text: words.staged(count(staged)), isUrgent: true };
  const place = job.waveStates.findIndex((wave) => wave.soaksUntil);
  const soaking = job.waveStates[place];
  if (soaking?.soaksUntil) {
    return { text: words.soaking(soaking.name ?? en.job.waves.name(count(place + 1)), moment(soaking.soaksUntil)), isUrgent: false };
  }
  const isStuck = countOf(job.counts, ACTIVE) === 0 && countOf(job.counts, ["QUEUED"]) > 0;
  return isStuck ? { text: words.stuck, isUrgent: false } : null;
}

/** What queued devices wait for, each in a line; what holds for the whole job is said by its own sentence. */
export function queuedFor(job: Job, summary: Summary | null): readonly string[] {
  if (job.state !== "IN_PROGRESS") return [];
  return Object.entries(summary?.waiting ?? {}).map(([word, many]) =>
    isKnown(word) ? words.words[word](count(many)) : words.other(count(many), word),
  );
}

function isKnown(word: string): word is keyof typeof words.words {
  return Object.hasOwn(words.words, word);
}
