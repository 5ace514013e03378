/** Fields of the plan: the id and the label of each. */
import { en } from "../../../../text/en";

export interface Field {
  readonly id: string;
  readonly name: string;
}

const words = en.newJob.plan;

export const FIELDS = {
  name: { id: "plan-name", name: words.name },
  canary: { id: "plan-canary", name: words.canary },
  addWave: { id: "plan-add-wave", name: words.waves },
  success: { id: "plan-success", name: words.success },
  soak: { id: "plan-soak", name: words.soak },
  addStop: { id: "plan-add-stop", name: words.stopRules },
  startAt: { id: "plan-start-at", name: words.startAt },
} as const;

/** Fields in the collapsed part of the form, which must expand if one of them has a fault. */
export const ADVANCED = {
  deadline: { id: "plan-deadline", name: words.deadline },
  perGateway: { id: "plan-per-gateway", name: words.perGateway },
  perJob: { id: "plan-per-job", name: words.perJob },
  perMinute: { id: "plan-per-minute", name: words.perMinute },
  retries: { id: "plan-retries", name: words.retries },
  backoff: { id: "plan-backoff", name: words.backoff },
  queueDays: { id: "plan-queue-days", name: words.queueDays },
  step: { id: "plan-step", name: words.step },
  total: { id: "plan-total", name: words.total },
  heartbeats: { id: "plan-heartbeats", name: words.heartbeats },
} as const;

export function isAdvanced(id: string): boolean {
  return Object.values(ADVANCED).some((field) => field.id === id);
}

/** Return the fields of the wave at a position, counted from 1. */
export function buildWaveFields(key: number, position: number): { amount: Field; name: Field } {
  return {
    amount: { id: `plan-wave-${key}`, name: words.waveAmount(position) },
    name: { id: `plan-wave-name-${key}`, name: words.waveName(position) },
  };
}

/** Return the fields of the abort rule at a position, counted from 1. */
export function buildStopFields(key: number, position: number): { percent: Field; least: Field } {
  return {
    percent: { id: `plan-stop-${key}`, name: words.stopRule.percent(position) },
    least: { id: `plan-stop-least-${key}`, name: words.stopRule.least(position) },
  };
}
