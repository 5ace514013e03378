/** Conversion of the typed plan to job settings. It collects the faults that the service would refuse, so that the user
 * can correct them before the request is sent. */
import type { Schemas } from "../../../../api/client";
import { en } from "../../../../text/en";
import { formatDecimal } from "../../../../text/format";
import { ADVANCED, FIELDS, buildStopFields, buildWaveFields } from "./fields";
import { type Fault, FormParser, type Limits } from "./form-parser";
import { MAX_STOPS, MAX_WAVES, type Plan } from "./plan.svelte";

/** Body of the request that creates a job, without firmware and targets. */
export type JobSettings = Omit<Schemas["NewJob"], "firmwareId" | "targets" | "dryRun" | "waves" | "abort"> & {
  readonly waves: Schemas["Wave"][];
  readonly abort: Schemas["Criterion"][];
};

const MAX_NAME_LENGTH = 200;
const MAX_WAVE_NAME_LENGTH = 100;
/** Minutes. */
const DAY = 1440;
const YEAR = 525_600;

const COUNT: Limits = { min: 1, max: 1_000_000, isInteger: true };
const SHARE: Limits = { min: 0, max: 100, isMinExclusive: true };
const words = en.newJob.errors;

/** Return the settings and all faults of a plan; with faults the settings are incomplete and must not be sent. */
export function buildJobSettings(
  plan: Plan,
  suggestedName: string,
  now: number,
): { settings: JobSettings; faults: readonly Fault[] } {
  const parser = new FormParser();
  // In the order of the fields on the page: the first fault gets the focus.
  const name = parseName(plan, suggestedName, parser);
  const waves = parseWaves(plan, parser);
  const gate = parseGate(plan, parser);
  const abort = parseStops(plan, parser);
  const { startAt, deadline } = parseTimes(plan, now, parser);
  const settings: JobSettings = {
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
      perGateway: parser.parseOptionalNumber(ADVANCED.perGateway, plan.limits.perGateway, COUNT),
      perJob: parser.parseOptionalNumber(ADVANCED.perJob, plan.limits.perJob, COUNT),
    },
    rate: parseRate(plan, parser),
    retry: {
      max: parser.parseNumber(ADVANCED.retries, plan.retry.max, { min: 0, max: 10, isInteger: true }),
      backoffSeconds: parser.parseNumber(ADVANCED.backoff, plan.retry.seconds, { min: 0, max: 21_600 }),
    },
    timeouts: {
      queueMinutes:
        DAY * parser.parseNumber(ADVANCED.queueDays, plan.timeouts.queueDays, { min: 0, max: YEAR / DAY, isMinExclusive: true }),
      stepMinutes: parser.parseNumber(ADVANCED.step, plan.timeouts.step, { min: 0, max: YEAR, isMinExclusive: true }),
      totalMinutes: parser.parseOptionalNumber(ADVANCED.total, plan.timeouts.total, { min: 1, max: 10_080 }),
    },
    health: { heartbeats: parser.parseNumber(ADVANCED.heartbeats, plan.heartbeats, { min: 0, max: 100, isInteger: true }) },
    onNewerJob: plan.onNewerJob,
  };
  return { settings, faults: parser.faults };
}

function parseName(plan: Plan, suggestedName: string, parser: FormParser): string {
  const name = parser.parseName(FIELDS.name, plan.name || suggestedName, MAX_NAME_LENGTH);
  if (name === "") parser.addFault(FIELDS.name, words.name);
  return name;
}

function parseTimes(plan: Plan, now: number, parser: FormParser): { startAt: string | null; deadline: string | null } {
  const isScheduled = plan.start === "later";
  if (isScheduled && plan.startAt === "") parser.addFault(FIELDS.startAt, words.moment);
  const startAt = isScheduled ? parser.parseTime(FIELDS.startAt, plan.startAt) : null;
  if (startAt !== null && startAt.getTime() <= now) parser.addFault(FIELDS.startAt, words.over);
  const deadline = parser.parseTime(ADVANCED.deadline, plan.deadline);
  if (deadline !== null && deadline.getTime() <= now) parser.addFault(ADVANCED.deadline, words.over);
  else if (deadline !== null && startAt !== null && deadline <= startAt) parser.addFault(ADVANCED.deadline, words.beforeStart);
  return { startAt: startAt?.toISOString() ?? null, deadline: deadline?.toISOString() ?? null };
}

function parseWaves(plan: Plan, parser: FormParser): Schemas["Wave"][] {
  if (plan.rollout === "once") return [];
  if (plan.rollout === "canary") {
    const { amount, unit } = plan.canary;
    const size = parser.parseNumber(FIELDS.canary, amount, unit === "count" ? COUNT : SHARE);
    return [{ name: en.newJob.plan.canaryName, ...buildSize(unit, size) }];
  }
  if (plan.waves.length === 0 || plan.waves.length > MAX_WAVES) parser.addFault(FIELDS.addWave, words.waves(MAX_WAVES));
  let previousPercent = 0;
  return plan.waves.map(({ key, name, amount, unit }, index) => {
    const fields = buildWaveFields(key, index + 1);
    const faultCount = parser.faults.length;
    const size = parser.parseNumber(fields.amount, amount, unit === "count" ? COUNT : SHARE);
    if (unit === "percent" && parser.faults.length === faultCount) {
      if (size <= previousPercent) parser.addFault(fields.amount, words.reached(formatDecimal(previousPercent)));
      previousPercent = Math.max(previousPercent, size);
    }
    return { name: parser.parseName(fields.name, name, MAX_WAVE_NAME_LENGTH) || null, ...buildSize(unit, size) };
  });
}

function buildSize(unit: "percent" | "count", size: number): Pick<Schemas["Wave"], "percent" | "count"> {
  return unit === "count" ? { count: size } : { percent: size };
}

function parseGate(plan: Plan, parser: FormParser): Schemas["Gate"] {
  if (plan.rollout === "once") return { successPercent: 0, soakMinutes: 0, pause: false };
  return {
    successPercent: parser.parseNumber(FIELDS.success, plan.gate.success, { min: 0, max: 100 }),
    soakMinutes: parser.parseNumber(FIELDS.soak, plan.gate.soak, { min: 0, max: YEAR }),
    pause: plan.gate.pause,
  };
}

function parseStops(plan: Plan, parser: FormParser): Schemas["Criterion"][] {
  if (plan.stops.length > MAX_STOPS) parser.addFault(FIELDS.addStop, words.stops(MAX_STOPS));
  return plan.stops.map(({ key, type, percent, least, action }, index) => {
    const fields = buildStopFields(key, index + 1);
    return {
      type,
      percent: parser.parseNumber(fields.percent, percent, SHARE),
      minExecuted: parser.parseNumber(fields.least, least, COUNT),
      action,
    };
  });
}

function parseRate(plan: Plan, parser: FormParser): Schemas["Rate"] | null {
  const perMinute = parser.parseOptionalNumber(ADVANCED.perMinute, plan.limits.perMinute, { min: 1, max: 60_000, isInteger: true });
  return perMinute === null ? null : { perMinute };
}
