/** Appearance of the states of jobs, waves and executions: a word, a tone, an icon, and in bars a texture, so that they
 * can be distinguished without colors. */
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

/** Props of `StateLabel`. */
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

/** Return the style of a job by its state, or by its outcome if it is completed. */
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

/** Execution states in the order of bars and legends: succeeded first, failed last. */
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

/** Failure states, which abort criteria count. */
export const FAILURE_STATES: readonly ExecutionState[] = ["FAILED", "TIMED_OUT", "REJECTED"];

/** States that each type of abort criterion counts. */
export const COUNTED_STATES: Record<Schemas["Criterion"]["type"], readonly ExecutionState[]> = {
  ALL: FAILURE_STATES,
  FAILED: ["FAILED"],
  REJECTED: ["REJECTED"],
  TIMED_OUT: ["TIMED_OUT"],
};

/** States of executions in progress. */
export const ACTIVE_STATES: readonly ExecutionState[] = ["DISPATCHED", "TRANSFERRING", "VERIFYING", "STAGED", "APPLYING", "CONFIRMING"];

/** States that a retry includes. */
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

/** Return the style of a wave. In a paused job the running wave is paused; in a job being canceled the waiting waves
 * are skipped. */
export function getWaveStyle(state: WaveState, job: JobState): StateStyle {
  if (state === "WAITING" && job === "CANCELING") return { word: words.wave.SKIPPED, ...WAVES.SKIPPED };
  if (state === "RUNNING" && job === "PAUSED") return { word: words.job.PAUSED, ...JOBS.PAUSED };
  return { word: words.wave[state], ...WAVES[state] };
}

/** States of jobs that can be canceled. */
export const CANCELABLE_STATES: readonly JobState[] = ["CREATED", "PENDING_APPROVAL", "SCHEDULED", "IN_PROGRESS", "PAUSED"];

/** Return whether a job has finished and never changes again. */
export function isFinished({ state }: Pick<Job, "state">): boolean {
  return state === "COMPLETED" || state === "CANCELED";
}

/** Return a key that changes with the state of a job or its waves, on which the reasons for waiting depend. */
export function getPhaseKey({ state, appliedAt, waveStates }: Pick<Job, "state" | "appliedAt" | "waveStates">): string {
  return JSON.stringify([state, appliedAt, waveStates.map((wave) => wave.state)]);
}

export type Counts = Job["counts"];

/** Count the executions in these states. */
export function countExecutions(counts: Counts, states: readonly ExecutionState[]): number {
  return states.reduce((sum, state) => sum + (counts[state] ?? 0), 0);
}

export function countAll(counts: Counts): number {
  return countExecutions(counts, EXECUTION_STATES);
}

/** Return the counts of the devices to update. Devices left out from the start, as incompatible or in another job, are
 * not part of percentages. */
export function countTargeted({ counts, leftOut }: Pick<Job, "counts" | "leftOut">): Counts {
  return Object.fromEntries(EXECUTION_STATES.map((state) => [state, (counts[state] ?? 0) - (leftOut[state] ?? 0)]));
}

/** Format the progress of a job. */
export function formatJobProgress(job: Job): string {
  return progressText(job.progress, countFinished(countTargeted(job)));
}

/** Format the progress of a job, or its success rate if it has finished. */
export function formatJobShare(job: Job): string {
  if (!isFinished(job)) return formatJobProgress(job);
  return formatPercentage(countExecutions(job.counts, ["SUCCEEDED"]), countAll(countTargeted(job)));
}

/** Count the executions that have finished, whatever the outcome. */
export function countFinished(counts: Counts): number {
  return countAll(counts) - countExecutions(counts, ["QUEUED", ...ACTIVE_STATES]);
}
