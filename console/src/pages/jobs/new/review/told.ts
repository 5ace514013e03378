/** An order in words: one sentence that says what will happen, and all of it as a list. */
import type { Schemas } from "../../../../api/client";
import { buildChips } from "../../../../filtering/filters";
import { en } from "../../../../text/en";
import { formatCount, formatDecimal, formatDateTime } from "../../../../text/format";
import { percentText } from "../../../../text/percent";
import { modelText } from "../../../../text/versions";
import type { Targets } from "../choice";
import type { Order } from "../plan/order";
import type { DryRun } from "../starting.svelte";

const words = en.newJob.review;
const MANY = 10;
const DAY = 1440;

export function sentenceOf(firmware: Schemas["Firmware"], order: Order, trial: DryRun, now: number): string {
  const say = words.sentence;
  const what = say.what(trial.eligible, firmware.version, modelText(firmware.modelNumber));
  return `${[what, ...howOf(order, trial.waves)].join(", ")}. ${startOf(order, now)}`;
}

function howOf({ gate }: Order, waves: DryRun["waves"]): readonly string[] {
  const say = words.sentence;
  const [first] = waves;
  if (waves.length < 2 || first === undefined) return [say.once];
  const percent = gate?.successPercent ? percentText(gate.successPercent) : null;
  const held = gate?.pause ? [say.held] : [];
  if (waves.length > 2) return [say.waves(waves.length), ...(percent === null ? [] : [say.gate(percent)]), ...held];
  return [say.canary(first.size), percent === null ? say.following : say.then(percent), ...held];
}

function startOf({ startAt, autoApply }: Order, now: number): string {
  if (!autoApply) return words.sentence.hand;
  const isLater = startAt !== null && startAt !== undefined && Date.parse(startAt) > now;
  return isLater ? words.sentence.later(formatDateTime(startAt)) : words.sentence.now;
}

/** What one should know before the job is started. */
export function warningsOf(order: Order, trial: DryRun, now: number): readonly string[] {
  const say = words.warnings;
  const warnings: string[] = [];
  if (trial.eligible === 0) return warnings;
  if (trial.offline === trial.eligible) warnings.push(say.allOffline);
  if (trial.busy > 0) warnings.push(say.busy(trial.busy));
  if (order.waves.length === 0 && trial.eligible > MANY) warnings.push(say.once(trial.eligible));
  if (order.abort.length === 0) warnings.push(say.stops);
  if (order.allowDowngrade) warnings.push(say.downgrade);
  if (order.method === "broadcast") warnings.push(say.broadcast);
  if (order.deadline) {
    const start = Math.max(now, order.startAt ? Date.parse(order.startAt) : now);
    const isTight = start + trial.estimatedMinutes * 60_000 > Date.parse(order.deadline);
    if (isTight) warnings.push(say.deadline(formatDateTime(order.deadline)));
  }
  return warnings;
}

export interface Fact {
  readonly name: string;
  readonly text: string;
}

export function devicesFact(targets: Targets, gatewayName: (mac: string) => string): Fact {
  const name = words.facts.devices;
  if (targets.kind === "list") return { name, text: words.values.selected(targets.ids.length) };
  if (targets.kind !== "filter") return { name, text: words.values.all };
  const { FriendlyName, Ids } = targets.filter;
  const parts = buildChips(targets.filter, gatewayName).map((chip) => chip.text);
  if (FriendlyName !== undefined) parts.push(`${en.devices.filter.FriendlyName}: ${FriendlyName}`);
  else if (Ids?.length === 1) parts.push(`${en.devices.filter.Ids}: ${Ids[0]}`);
  return { name, text: parts.join(" · ") };
}

export function planFacts(order: Order, now: number): readonly Fact[] {
  const { facts, values } = words;
  const fact = (name: string, ...parts: (string | false | null | undefined)[]): Fact[] => {
    const said = parts.filter((part): part is string => Boolean(part));
    return said.length === 0 ? [] : [{ name, text: said.join(", ") }];
  };
  return [
    { name: facts.name, text: order.name },
    ...fact(facts.order, ...orderParts(order)),
    ...fact(facts.stops, ...(order.abort.length === 0 ? [values.never] : order.abort.map(stopText))),
    { name: facts.start, text: startOf(order, now) },
    ...fact(facts.deadline, order.deadline && formatDateTime(order.deadline)),
    ...fact(facts.method, en.newJob.plan.methods[order.method ?? "usual"]),
    ...fact(facts.limits, ...limitParts(order)),
    ...fact(facts.retry, retryText(order)),
    ...fact(facts.offline, order.timeouts && values.days(formatDecimal(order.timeouts.queueMinutes / DAY))),
    ...fact(facts.other, order.stage && values.stage, order.allowDowngrade && values.downgrade),
  ];
}

function orderParts({ waves, gate }: Order): (string | false)[] {
  const { values, sentence } = words;
  if (waves.length === 0 || gate === undefined) return [sentence.once];
  const sizes = waves.map(({ percent, count: many }) =>
    many === null || many === undefined ? percentText(percent ?? 0) : words.devices(many),
  );
  return [
    [...sizes, words.rest.toLowerCase()].join(" → "),
    gate.successPercent > 0 && values.gate(percentText(gate.successPercent)),
    gate.soakMinutes > 0 && values.soak(formatDecimal(gate.soakMinutes)),
    gate.pause && values.pause,
  ];
}

function stopText({ type, percent, minExecuted, action }: Schemas["Criterion"]): string {
  const { types, actions } = en.newJob.plan.stopRule;
  return words.values.stop(types[type], percentText(percent), formatCount(minExecuted), actions[action]);
}

function limitParts({ concurrency, rate }: Order): string[] {
  const { values } = words;
  const parts: string[] = [];
  if (concurrency?.perGateway) parts.push(values.perGateway(formatCount(concurrency.perGateway)));
  if (concurrency?.perJob) parts.push(values.perJob(formatCount(concurrency.perJob)));
  if (rate?.perMinute) parts.push(values.perMinute(formatCount(rate.perMinute)));
  return parts.length === 0 ? [values.unlimited] : parts;
}

function retryText({ retry }: Order): string {
  if (!retry?.max) return words.values.noRetry;
  return words.values.retry(formatCount(retry.max), formatDecimal(retry.backoffSeconds));
}
