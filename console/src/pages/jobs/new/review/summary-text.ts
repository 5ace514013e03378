/** Texts of the review: a sentence that says what the job will do, warnings, and a list of all settings. */
import type { Schemas } from "../../../../api/client";
import { buildChips } from "../../../../filtering/filters";
import { en } from "../../../../text/en";
import { formatCount, formatDecimal, formatDateTime } from "../../../../text/format";
import { percentText } from "../../../../text/percent";
import { modelText } from "../../../../text/versions";
import type { DryRun } from "../job-creation.svelte";
import type { Targets } from "../parameters";
import type { JobSettings } from "../plan/job-settings";

const words = en.newJob.review;
/** Number of devices above which a rollout without waves gives a warning. */
const MANY_DEVICES = 10;
/** Minutes. */
const DAY = 1440;

/** Return what the job will do and when it starts, in two sentences. */
export function formatSummary(firmware: Schemas["Firmware"], settings: JobSettings, dryRun: DryRun, now: number): string {
  const texts = words.sentence;
  const what = texts.what(dryRun.eligible, firmware.version, modelText(firmware.modelNumber));
  return `${[what, ...formatRollout(settings, dryRun.waves)].join(", ")}. ${formatStart(settings, now)}`;
}

function formatRollout({ gate }: JobSettings, waves: DryRun["waves"]): readonly string[] {
  const texts = words.sentence;
  const [first] = waves;
  if (waves.length < 2 || first === undefined) return [texts.once];
  const percent = gate?.successPercent ? percentText(gate.successPercent) : null;
  const held = gate?.pause ? [texts.held] : [];
  if (waves.length > 2) return [texts.waves(waves.length), ...(percent === null ? [] : [texts.gate(percent)]), ...held];
  return [texts.canary(first.size), percent === null ? texts.following : texts.then(percent), ...held];
}

function formatStart({ startAt, autoApply }: JobSettings, now: number): string {
  if (!autoApply) return words.sentence.hand;
  const isScheduled = startAt !== null && startAt !== undefined && Date.parse(startAt) > now;
  return isScheduled ? words.sentence.later(formatDateTime(startAt)) : words.sentence.now;
}

/** Return warnings about what the user should know before starting the job. */
export function listWarnings(settings: JobSettings, dryRun: DryRun, now: number): readonly string[] {
  const texts = words.warnings;
  const warnings: string[] = [];
  if (dryRun.eligible === 0) return warnings;
  if (dryRun.offline === dryRun.eligible) warnings.push(texts.allOffline);
  if (dryRun.busy > 0) warnings.push(texts.busy(dryRun.busy));
  if (settings.waves.length === 0 && dryRun.eligible > MANY_DEVICES) warnings.push(texts.once(dryRun.eligible));
  if (settings.abort.length === 0) warnings.push(texts.stops);
  if (settings.allowDowngrade) warnings.push(texts.downgrade);
  if (settings.method === "broadcast") warnings.push(texts.broadcast);
  if (settings.deadline) {
    const start = Math.max(now, settings.startAt ? Date.parse(settings.startAt) : now);
    const isTight = start + dryRun.estimatedMinutes * 60_000 > Date.parse(settings.deadline);
    if (isTight) warnings.push(texts.deadline(formatDateTime(settings.deadline)));
  }
  return warnings;
}

export interface Fact {
  readonly name: string;
  readonly text: string;
}

export function buildDevicesFact(targets: Targets, gatewayName: (mac: string) => string): Fact {
  const name = words.facts.devices;
  if (targets.kind === "list") return { name, text: words.values.selected(targets.ids.length) };
  if (targets.kind !== "filter") return { name, text: words.values.all };
  const { FriendlyName, Ids } = targets.filter;
  const parts = buildChips(targets.filter, gatewayName).map((chip) => chip.text);
  if (FriendlyName !== undefined) parts.push(`${en.devices.filter.FriendlyName}: ${FriendlyName}`);
  else if (Ids?.length === 1) parts.push(`${en.devices.filter.Ids}: ${Ids[0]}`);
  return { name, text: parts.join(" · ") };
}

export function buildPlanFacts(settings: JobSettings, now: number): readonly Fact[] {
  const { facts, values } = words;
  const fact = (name: string, ...parts: (string | false | null | undefined)[]): Fact[] => {
    const present = parts.filter((part): part is string => Boolean(part));
    return present.length === 0 ? [] : [{ name, text: present.join(", ") }];
  };
  return [
    { name: facts.name, text: settings.name },
    ...fact(facts.order, ...formatWaves(settings)),
    ...fact(facts.stops, ...(settings.abort.length === 0 ? [values.never] : settings.abort.map(formatStop))),
    { name: facts.start, text: formatStart(settings, now) },
    ...fact(facts.deadline, settings.deadline && formatDateTime(settings.deadline)),
    ...fact(facts.method, en.newJob.plan.methods[settings.method ?? "usual"]),
    ...fact(facts.limits, ...formatLimits(settings)),
    ...fact(facts.retry, formatRetry(settings)),
    ...fact(facts.offline, settings.timeouts && values.days(formatDecimal(settings.timeouts.queueMinutes / DAY))),
    ...fact(facts.other, settings.stage && values.stage, settings.allowDowngrade && values.downgrade),
  ];
}

function formatWaves({ waves, gate }: JobSettings): (string | false)[] {
  const { values, sentence } = words;
  if (waves.length === 0 || gate === undefined) return [sentence.once];
  const sizes = waves.map(({ percent, count: devices }) =>
    devices === null || devices === undefined ? percentText(percent ?? 0) : words.devices(devices),
  );
  return [
    [...sizes, words.rest.toLowerCase()].join(" → "),
    gate.successPercent > 0 && values.gate(percentText(gate.successPercent)),
    gate.soakMinutes > 0 && values.soak(formatDecimal(gate.soakMinutes)),
    gate.pause && values.pause,
  ];
}

function formatStop({ type, percent, minExecuted, action }: Schemas["Criterion"]): string {
  const { types, actions } = en.newJob.plan.stopRule;
  return words.values.stop(types[type], percentText(percent), formatCount(minExecuted), actions[action]);
}

function formatLimits({ concurrency, rate }: JobSettings): string[] {
  const { values } = words;
  const parts: string[] = [];
  if (concurrency?.perGateway) parts.push(values.perGateway(formatCount(concurrency.perGateway)));
  if (concurrency?.perJob) parts.push(values.perJob(formatCount(concurrency.perJob)));
  if (rate?.perMinute) parts.push(values.perMinute(formatCount(rate.perMinute)));
  return parts.length === 0 ? [values.unlimited] : parts;
}

function formatRetry({ retry }: JobSettings): string {
  if (!retry?.max) return words.values.noRetry;
  return words.values.retry(formatCount(retry.max), formatDecimal(retry.backoffSeconds));
}
