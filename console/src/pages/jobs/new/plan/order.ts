/** A plan as an order, or all that is wrong with it: what the service would refuse is told while one can still mend it. */
import type { Schemas } from "../../../../api/client";
import { en } from "../../../../text/en";
import { formatDecimal } from "../../../../text/format";
import { FIELDS, FOLDED, stopFields, waveFields } from "./fields";
import { MOST_STOPS, MOST_WAVES, type Plan } from "./plan.svelte";
import { type Fault, type Limits, Reading } from "./reading";

export type Order = Omit<Schemas["NewJob"], "firmwareId" | "targets" | "dryRun" | "waves" | "abort"> & {
  readonly waves: Schemas["Wave"][];
  readonly abort: Schemas["Criterion"][];
};

const MAX_NAME_LENGTH = 200;
const LONGEST_WAVE_NAME = 100;
const DAY = 1440;
const YEAR = 525_600;

const COUNT: Limits = { least: 1, most: 1_000_000, isWhole: true };
const SHARE: Limits = { least: 0, most: 100, isAbove: true };
const words = en.newJob.errors;

export function orderOf(plan: Plan, suggested: string, now: number): { order: Order; faults: readonly Fault[] } {
  const reading = new Reading();
  // In the order in which one sees the fields: the first that is wrong is the first to mend.
  const name = nameOf(plan, suggested, reading);
  const waves = wavesOf(plan, reading);
  const gate = gateOf(plan, reading);
  const abort = stopsOf(plan, reading);
  const { startAt, deadline } = timesOf(plan, now, reading);
  const order: Order = {
    name,
    stage: plan.stage,
    allowDowngrade: plan.allowDowngrade,
    method: plan.method === "" ? null : plan.method,
    autoApply: plan.start !== "hand",
    startAt,
    deadline,
    waves,
    gate,
    abort,
    concurrency: {
      perGateway: reading.numberOrNone(FOLDED.perGateway, plan.limits.perGateway, COUNT),
      perJob: reading.numberOrNone(FOLDED.perJob, plan.limits.perJob, COUNT),
    },
    rate: rateOf(plan, reading),
    retry: {
      max: reading.number(FOLDED.retries, plan.retry.max, { least: 0, most: 10, isWhole: true }),
      backoffSeconds: reading.number(FOLDED.backoff, plan.retry.seconds, { least: 0, most: 21_600 }),
    },
    timeouts: {
      queueMinutes: DAY * reading.number(FOLDED.queueDays, plan.timeouts.queueDays, { least: 0, most: YEAR / DAY, isAbove: true }),
      stepMinutes: reading.number(FOLDED.step, plan.timeouts.step, { least: 0, most: YEAR, isAbove: true }),
      totalMinutes: reading.numberOrNone(FOLDED.total, plan.timeouts.total, { least: 1, most: 10_080 }),
    },
    health: { heartbeats: reading.number(FOLDED.heartbeats, plan.heartbeats, { least: 0, most: 100, isWhole: true }) },
    onNewerJob: plan.onNewerJob,
  };
  return { order, faults: reading.faults };
}

function nameOf(plan: Plan, suggested: string, reading: Reading): string {
  const name = reading.name(FIELDS.name, plan.name || suggested, MAX_NAME_LENGTH);
  if (name === "") reading.fault(FIELDS.name, words.name);
  return name;
}

function timesOf(plan: Plan, now: number, reading: Reading): { startAt: string | null; deadline: string | null } {
  const isLater = plan.start === "later";
  if (isLater && plan.startAt === "") reading.fault(FIELDS.startAt, words.moment);
  const startAt = isLater ? reading.moment(FIELDS.startAt, plan.startAt) : null;
  if (startAt !== null && startAt.getTime() <= now) reading.fault(FIELDS.startAt, words.over);
  const deadline = reading.moment(FOLDED.deadline, plan.deadline);
  if (deadline !== null && deadline.getTime() <= now) reading.fault(FOLDED.deadline, words.over);
  else if (deadline !== null && startAt !== null && deadline <= startAt) reading.fault(FOLDED.deadline, words.beforeStart);
  return { startAt: startAt?.toISOString() ?? null, deadline: deadline?.toISOString() ?? null };
}

function wavesOf(plan: Plan, reading: Reading): Schemas["Wave"][] {
  if (plan.rollout === "once") return [];
  if (plan.rollout === "canary") {
    const { amount, unit } = plan.canary;
    const size = reading.number(FIELDS.canary, amount, unit === "count" ? COUNT : SHARE);
    return [{ name: en.newJob.plan.canaryName, ...sizeOf(unit, size) }];
  }
  if (plan.waves.length === 0 || plan.waves.length > MOST_WAVES) reading.fault(FIELDS.addWave, words.waves(MOST_WAVES));
  let reached = 0;
  return plan.waves.map(({ key, name, amount, unit }, index) => {
    const fields = waveFields(key, index + 1);
    const before = reading.faults.length;
    const size = reading.number(fields.amount, amount, unit === "count" ? COUNT : SHARE);
    if (unit === "percent" && reading.faults.length === before) {
      if (size <= reached) reading.fault(fields.amount, words.reached(formatDecimal(reached)));
      reached = Math.max(reached, size);
    }
    return { name: reading.name(fields.name, name, LONGEST_WAVE_NAME) || null, ...sizeOf(unit, size) };
  });
}

function sizeOf(unit: "percent" | "count", size: number): Pick<Schemas["Wave"], "percent" | "count"> {
  return unit === "count" ? { count: size } : { percent: size };
}

function gateOf(plan: Plan, reading: Reading): Schemas["Gate"] {
  if (plan.rollout === "once") return { successPercent: 0, soakMinutes: 0, pause: false };
  return {
    successPercent: reading.number(FIELDS.success, plan.gate.success, { least: 0, most: 100 }),
    soakMinutes: reading.number(FIELDS.soak, plan.gate.soak, { least: 0, most: YEAR }),
    pause: plan.gate.pause,
  };
}

function stopsOf(plan: Plan, reading: Reading): Schemas["Criterion"][] {
  if (plan.stops.length > MOST_STOPS) reading.fault(FIELDS.addStop, words.stops(MOST_STOPS));
  return plan.stops.map(({ key, type, percent, least, action }, index) => {
    const fields = stopFields(key, index + 1);
    return {
      type,
      percent: reading.number(fields.percent, percent, SHARE),
      minExecuted: reading.number(fields.least, least, COUNT),
      action,
    };
  });
}

function rateOf(plan: Plan, reading: Reading): Schemas["Rate"] | null {
  const perMinute = reading.numberOrNone(FOLDED.perMinute, plan.limits.perMinute, { least: 1, most: 60_000, isWhole: true });
  return perMinute === null ? null : { perMinute };
}
