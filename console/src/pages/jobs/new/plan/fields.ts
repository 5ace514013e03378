/** The fields of a plan: under which id each is found, and what it is called. */
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

/** Those that are folded away: whoever has a fault there must see it. */
export const FOLDED = {
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

export function isFolded(id: string): boolean {
  return Object.values(FOLDED).some((field) => field.id === id);
}

/** Of the wave at a place, from 1 on. */
export function waveFields(key: number, place: number): { amount: Field; name: Field } {
  return {
    amount: { id: `plan-wave-${key}`, name: words.waveAmount(place) },
    name: { id: `plan-wave-name-${key}`, name: words.waveName(place) },
  };
}

/** Of the rule at a place, from 1 on. */
export function stopFields(key: number, place: number): { percent: Field; least: Field } {
  return {
    percent: { id: `plan-stop-${key}`, name: words.stopRule.percent(place) },
    least: { id: `plan-stop-least-${key}`, name: words.stopRule.least(place) },
  };
}
