/** What the gate behind a wave waits for, or how it came out. */
import type { Job } from "../../../../jobs/states";
import { en } from "../../../../text/en";
import { formatDecimal, formatDateTime } from "../../../../text/format";
import { formatPercentage, percentText, reachesPercent } from "../../../../text/percent";

const words = en.job.waves;

/** Whether there is anything to tell of waves: one that holds all devices, without a gate, is the job itself. */
export function hasWaves(job: Job): boolean {
  return job.waveStates.length > 1;
}

/** A sentence about a gate, or two; empty where there is none. */
export function gateText(job: Job, index: number): string {
  const wave = job.waveStates[index];
  if (wave === undefined) return "";
  // Nothing begins any more.
  if (job.state === "CANCELING" && (wave.state === "WAITING" || wave.state === "RUNNING")) return "";
  const { successPercent: needed } = job.gate;
  const ran = wave.succeeded + wave.failed;
  const share = formatPercentage(wave.succeeded, ran, needed);
  switch (wave.state) {
    case "WAITING":
      if (index === 0) return words.waitingFirst;
      return isHeldUp(job, index) ? words.waitingResume : words.waiting;
    case "RUNNING":
      return index === job.waveStates.length - 1 ? "" : ahead(job);
    case "SOAKING":
      return wave.soaksUntil ? words.soaking(formatDateTime(wave.soaksUntil)) : "";
    case "HELD":
      return words.held;
    case "PASSED":
      // A gate opens as soon as enough succeeded, while others are under way: of those it knows nothing yet.
      if (needed === 0) return "";
      return ran === wave.size ? words.passed(share, percentText(needed)) : words.enough(percentText(needed));
    case "FAILED":
      return reachesPercent(wave.succeeded, ran, needed) ? words.broken : words.short(share, percentText(needed));
    case "SKIPPED":
      return "";
  }
}

/** Whether the wave before is over, and the job rests before this one. */
function isHeldUp({ state, pauseReason, waveStates }: Job, index: number): boolean {
  if (state !== "PAUSED" || (pauseReason !== "GATE" && pauseReason !== "GATE_FAILED")) return false;
  return waveStates.findIndex((wave) => wave.state === "WAITING") === index;
}

function ahead({ gate }: Job): string {
  const parts = [gate.successPercent > 0 ? words.needs(percentText(gate.successPercent)) : words.ungated];
  if (gate.soakMinutes > 0) parts.push(words.soak(formatDecimal(gate.soakMinutes)));
  if (gate.pause) parts.push(words.look);
  return parts.join(" ");
}
