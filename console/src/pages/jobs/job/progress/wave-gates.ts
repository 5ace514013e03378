/** Texts for the gate after each wave: what it waits for, or its result. */
import type { Job } from "../../../../jobs/states";
import { en } from "../../../../text/en";
import { formatDecimal, formatDateTime } from "../../../../text/format";
import { formatPercentage, percentText, reachesPercent } from "../../../../text/percent";

const words = en.job.waves;

/** Return whether a job has several waves; a single wave is the job itself. */
export function hasWaves(job: Job): boolean {
  return job.waveStates.length > 1;
}

/** Return one or two sentences about the gate of a wave; empty: nothing to say. */
export function formatGate(job: Job, index: number): string {
  const wave = job.waveStates[index];
  if (wave === undefined) return "";
  // A job that is being canceled starts no further wave.
  if (job.state === "CANCELING" && (wave.state === "WAITING" || wave.state === "RUNNING")) return "";
  const { successPercent: required } = job.gate;
  const finished = wave.succeeded + wave.failed;
  const share = formatPercentage(wave.succeeded, finished, required);
  switch (wave.state) {
    case "WAITING":
      if (index === 0) return words.waitingFirst;
      return isPausedBefore(job, index) ? words.waitingResume : words.waiting;
    case "RUNNING":
      return index === job.waveStates.length - 1 ? "" : formatUpcomingGate(job);
    case "SOAKING":
      return wave.soaksUntil ? words.soaking(formatDateTime(wave.soaksUntil)) : "";
    case "HELD":
      return words.held;
    case "PASSED":
      // A gate opens as soon as enough devices succeeded. While others are still running, the final rate is unknown.
      if (required === 0) return "";
      return finished === wave.size ? words.passed(share, percentText(required)) : words.enough(percentText(required));
    case "FAILED":
      return reachesPercent(wave.succeeded, finished, required) ? words.broken : words.short(share, percentText(required));
    case "SKIPPED":
      return "";
  }
}

/** Return whether the job is paused at the gate in front of this wave. */
function isPausedBefore({ state, pauseReason, waveStates }: Job, index: number): boolean {
  if (state !== "PAUSED" || (pauseReason !== "GATE" && pauseReason !== "GATE_FAILED")) return false;
  return waveStates.findIndex((wave) => wave.state === "WAITING") === index;
}

function formatUpcomingGate({ gate }: Job): string {
  const parts = [gate.successPercent > 0 ? words.needs(percentText(gate.successPercent)) : words.ungated];
  if (gate.soakMinutes > 0) parts.push(words.soak(formatDecimal(gate.soakMinutes)));
  if (gate.pause) parts.push(words.look);
  return parts.join(" ");
}
