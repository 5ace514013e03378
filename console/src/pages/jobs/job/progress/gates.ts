/** What the gate behind a wave waits for, or how it came out. */
import type { Job } from "../../../../jobs/states";
import { en } from "../../../../text/en";
import { decimal, moment, percent } from "../../../../text/format";

const words = en.job.waves;

/** Whether there is anything to tell of waves: one that holds all devices, without a gate, is the job itself. */
export function hasWaves(job: Job): boolean {
  return job.waveStates.length > 1;
}

/** A sentence about a gate, or two; empty where there is none. */
export function gateText(job: Job, index: number): string {
  const wave = job.waveStates[index];
  if (wave === undefined) return "";
  const { successPercent: needed } = job.gate;
  const ran = wave.succeeded + wave.failed;
  const share = percent(wave.succeeded, ran);
  switch (wave.state) {
    case "WAITING":
      return index === 0 ? words.waitingFirst : words.waiting;
    case "RUNNING":
      return index === job.waveStates.length - 1 ? "" : ahead(job);
    case "SOAKING":
      return wave.soaksUntil ? words.soaking(moment(wave.soaksUntil)) : "";
    case "HELD":
      return words.held;
    case "PASSED":
      return needed > 0 ? words.passed(share, decimal(needed)) : "";
    case "FAILED":
      return 100 * wave.succeeded < needed * ran ? words.short(share, decimal(needed)) : words.broken;
    case "SKIPPED":
      return "";
  }
}

function ahead({ gate }: Job): string {
  const parts = [gate.successPercent > 0 ? words.needs(decimal(gate.successPercent)) : words.ungated];
  if (gate.soakMinutes > 0) parts.push(words.soak(decimal(gate.soakMinutes)));
  if (gate.pause) parts.push(words.look);
  return parts.join(" ");
}
