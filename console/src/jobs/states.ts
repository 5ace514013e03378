/** The states of jobs, waves and executions as people see them: a word, a tone, an icon; in bars also a texture, so that
 * they can be told apart without colours. */
import ArrowDown from "@lucide/svelte/icons/arrow-down-to-line";
import Ban from "@lucide/svelte/icons/ban";
import Bolt from "@lucide/svelte/icons/zap";
import Calendar from "@lucide/svelte/icons/calendar-clock";
import CircleCheck from "@lucide/svelte/icons/circle-check";
import CircleSlash from "@lucide/svelte/icons/circle-slash";
import Clock from "@lucide/svelte/icons/clock";
import Eraser from "@lucide/svelte/icons/eraser";
import Hand from "@lucide/svelte/icons/hand";
import Heart from "@lucide/svelte/icons/heart-pulse";
import Hourglass from "@lucide/svelte/icons/hourglass";
import OctagonX from "@lucide/svelte/icons/octagon-x";
import PackageCheck from "@lucide/svelte/icons/package-check";
import Pause from "@lucide/svelte/icons/pause";
import Refresh from "@lucide/svelte/icons/refresh-cw";
import Replace from "@lucide/svelte/icons/replace";
import Scan from "@lucide/svelte/icons/scan-search";
import Send from "@lucide/svelte/icons/send";
import ShieldX from "@lucide/svelte/icons/shield-x";
import Skip from "@lucide/svelte/icons/skip-forward";
import TimerOff from "@lucide/svelte/icons/timer-off";
import Triangle from "@lucide/svelte/icons/triangle-alert";

import type { Schemas } from "../api/client";
import type { Icon, Tone } from "../components/StateLabel.svelte";
import { en } from "../text/en";
import { formatPercentage, progressText } from "../text/percent";

export type Job = Schemas["Job"];
export type JobState = Schemas["JobState"];
export type ExecutionState = Schemas["ExecutionState"];
export type WaveState = Schemas["WaveState"];

/** What `Toned` shows. */
export interface StateStyle {
  readonly word: string;
  readonly tone: Tone;
  readonly icon: Icon;
}

export type Texture = "solid" | "upright" | "slanted" | "backward" | "level" | "dotted";

export interface BarStyle extends StateStyle {
  readonly texture: Texture;
}

const words = en.jobs.states;

const JOBS: Record<JobState, Omit<StateStyle, "word">> = {
  CREATED: { tone: "off", icon: Hand },
  PENDING_APPROVAL: { tone: "off", icon: Hand },
  SCHEDULED: { tone: "off", icon: Calendar },
  IN_PROGRESS: { tone: "accent", icon: Refresh },
  PAUSED: { tone: "warn", icon: Pause },
  CANCELING: { tone: "warn", icon: Ban },
  CANCELED: { tone: "off", icon: Ban },
  COMPLETED: { tone: "ok", icon: CircleCheck },
  DELETING: { tone: "off", icon: Eraser },
};

const OUTCOMES: Record<Schemas["Outcome"], Omit<StateStyle, "word">> = {
  SUCCEEDED: { tone: "ok", icon: CircleCheck },
  PARTIAL: { tone: "warn", icon: Triangle },
  FAILED: { tone: "bad", icon: OctagonX },
  NONE: { tone: "off", icon: CircleSlash },
};

/** Where a job is; of one that came to its end by itself, how it went. */
export function getJobStyle({ state, outcome }: Pick<Job, "state" | "outcome">): StateStyle {
  if (state === "COMPLETED" && outcome !== null) return { word: words.outcome[outcome], ...OUTCOMES[outcome] };
  return { word: words.job[state], ...JOBS[state] };
}

const EXECUTIONS: Record<ExecutionState, Omit<BarStyle, "word">> = {
  SUCCEEDED: { tone: "ok", icon: CircleCheck, texture: "solid" },
  CONFIRMING: { tone: "accent", icon: Heart, texture: "dotted" },
  APPLYING: { tone: "accent", icon: Bolt, texture: "upright" },
  STAGED: { tone: "accent", icon: PackageCheck, texture: "level" },
  VERIFYING: { tone: "accent", icon: Scan, texture: "slanted" },
  TRANSFERRING: { tone: "accent", icon: ArrowDown, texture: "solid" },
  DISPATCHED: { tone: "accent", icon: Send, texture: "backward" },
  QUEUED: { tone: "off", icon: Clock, texture: "solid" },
  SKIPPED: { tone: "off", icon: Skip, texture: "slanted" },
  CANCELED: { tone: "off", icon: Ban, texture: "upright" },
  REMOVED: { tone: "off", icon: Eraser, texture: "dotted" },
  SUPERSEDED: { tone: "off", icon: Replace, texture: "level" },
  REJECTED: { tone: "bad", icon: ShieldX, texture: "upright" },
  TIMED_OUT: { tone: "bad", icon: TimerOff, texture: "slanted" },
  FAILED: { tone: "bad", icon: OctagonX, texture: "solid" },
};

/** All states of an execution in the order in which bars and legends show them: what is done first, what went wrong
 * last. */
export const EXECUTION_STATES: readonly ExecutionState[] = [
  "SUCCEEDED",
  "CONFIRMING",
  "APPLYING",
  "STAGED",
  "VERIFYING",
  "TRANSFERRING",
  "DISPATCHED",
  "QUEUED",
  "SKIPPED",
  "CANCELED",
  "REMOVED",
  "SUPERSEDED",
  "REJECTED",
  "TIMED_OUT",
  "FAILED",
];

/** What went wrong: these are what abort criteria count. */
export const FAILURE_STATES: readonly ExecutionState[] = ["FAILED", "TIMED_OUT", "REJECTED"];

/** What an abort criterion of a kind counts. */
export const COUNTED_STATES: Record<Schemas["Criterion"]["type"], readonly ExecutionState[]> = {
  ALL: FAILURE_STATES,
  FAILED: ["FAILED"],
  REJECTED: ["REJECTED"],
  TIMED_OUT: ["TIMED_OUT"],
};

/** What is under way. */
export const ACTIVE_STATES: readonly ExecutionState[] = ["DISPATCHED", "TRANSFERRING", "VERIFYING", "STAGED", "APPLYING", "CONFIRMING"];

/** What a retry would try again. */
export const RETRYABLE_STATES: readonly ExecutionState[] = ["FAILED", "TIMED_OUT", "CANCELED"];

export function getExecutionStyle(state: ExecutionState): BarStyle {
  return { word: words.execution[state], ...EXECUTIONS[state] };
}

const WAVES: Record<WaveState, Omit<StateStyle, "word">> = {
  WAITING: { tone: "off", icon: Clock },
  RUNNING: { tone: "accent", icon: Refresh },
  SOAKING: { tone: "accent", icon: Hourglass },
  PASSED: { tone: "ok", icon: CircleCheck },
  HELD: { tone: "warn", icon: Hand },
  FAILED: { tone: "bad", icon: OctagonX },
  SKIPPED: { tone: "off", icon: Skip },
};

/** Where a wave is. While the job rests, nothing more of the wave that is on begins; when it is being cancelled, no other
 * wave does. */
export function getWaveStyle(state: WaveState, job: JobState): StateStyle {
  if (state === "WAITING" && job === "CANCELING") return { word: words.wave.SKIPPED, ...WAVES.SKIPPED };
  if (state === "RUNNING" && job === "PAUSED") return { word: words.job.PAUSED, ...JOBS.PAUSED };
  return { word: words.wave[state], ...WAVES[state] };
}

/** The states of jobs that can be cancelled: what is over or on its way there cannot. */
export const CANCELABLE_STATES: readonly JobState[] = ["CREATED", "PENDING_APPROVAL", "SCHEDULED", "IN_PROGRESS", "PAUSED"];

/** Whether a job is over: it never changes any more. */
export function isFinished({ state }: Pick<Job, "state">): boolean {
  return state === "COMPLETED" || state === "CANCELED";
}

/** Where a job and its waves are: what devices wait for depends on it. */
export function getPhaseKey({ state, appliedAt, waveStates }: Pick<Job, "state" | "appliedAt" | "waveStates">): string {
  return JSON.stringify([state, appliedAt, waveStates.map((wave) => wave.state)]);
}

export type Counts = Job["counts"];

/** How many executions are in any of these states. */
export function countExecutions(counts: Counts, states: readonly ExecutionState[]): number {
  return states.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
}

export function countAll(counts: Counts): number {
  return countExecutions(counts, EXECUTION_STATES);
}

/** Those that the job is to update, by state: who cannot take the firmware, or is kept by another job, was left out from
 * the beginning, and is no part of any percentage. */
export function countTargeted({ counts, leftOut }: Pick<Job, "counts" | "leftOut">): Counts {
  return Object.fromEntries(EXECUTION_STATES.map((state) => [state, (counts[state] ?? 0) - (leftOut[state] ?? 0)]));
}

/** How far a job is, of all devices together. */
export function formatJobProgress(job: Job): string {
  return progressText(job.progress, countFinished(countTargeted(job)));
}

/** How far a job is; of one that is over, how many have come to run its version. */
export function formatJobShare(job: Job): string {
  if (!isFinished(job)) return formatJobProgress(job);
  return formatPercentage(countExecutions(job.counts, ["SUCCEEDED"]), countAll(countTargeted(job)));
}

/** How many are over, however it went. */
export function countFinished(counts: Counts): number {
  return countAll(counts) - countExecutions(counts, ["QUEUED", ...ACTIVE_STATES]);
}
