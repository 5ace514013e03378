/** What happened to one device, in the order in which it happened: its steps, what caused them, and what else was heard. */
import type { Schemas } from "../../../../api/client";
import { deviceNames } from "../../../../api/device-names.svelte";
import { type ExecutionState, getExecutionStyle } from "../../../../jobs/states";
import { en } from "../../../../text/en";
import { formatCount, humanizeName, formatDateTime, toSentence, valueText } from "../../../../text/format";
import { reasonOf } from "../reasons";

export type Detail = Schemas["ExecutionDetail"];
type Heard = Schemas["Evidence"];

export interface Line {
  readonly time: string;
  readonly attempt: number;
  /** What it is now; null: it was only heard, and moved nothing. */
  readonly state: ExecutionState | null;
  readonly title: string;
  /** What was said, if something was. */
  readonly said: string | null;
  /** Who did it, if it was a person or another program. */
  readonly actor: string | null;
  readonly isLater: boolean;
}

const words = en.job.evidence;
/** What the numbers mean by which devices tell why an update failed. */
const ERRORS = [
  undefined,
  "NO_IMAGE",
  "WRONG_MODEL",
  "BAD_HASH",
  "DOWNGRADE",
  "BATTERY",
  "ABORTED",
  "TRANSFER_LOST",
  "ROLLED_BACK",
] as const;
/** The actor of what the service does by itself. */
const SERVICE = "meshfleet";

export function storyOf(detail: Detail): readonly Line[] {
  const steps = detail.transitions.map((step): Line => {
    const to = getExecutionStyle(step.to).word;
    return {
      time: step.time,
      attempt: step.attempt,
      state: step.to,
      title: step.from === null ? to : words.step(getExecutionStyle(step.from).word, to),
      said: [toSentence(step.cause), step.evidence ? saidBy(step.evidence) : ""].filter((part) => part !== "").join(" "),
      actor: step.actor === SERVICE ? null : step.actor,
      isLater: false,
    };
  });
  const heard = (all: readonly Heard[], isLater: boolean): Line[] =>
    all.map((each) => ({
      time: each.time,
      attempt: each.attempt,
      state: null,
      title: saidBy(each),
      said: null,
      actor: null,
      isLater,
    }));
  // Sorting is stable: of one moment the step comes first, which is what the rest belongs to.
  return [...steps, ...heard(detail.evidence, false), ...heard(detail.later, true)].sort((one, other) =>
    one.time.localeCompare(other.time),
  );
}

/** MACs of those that heard it on its way. */
export function parentsIn(detail: Detail): readonly string[] {
  const steps = detail.transitions.flatMap((step) => (step.evidence ? [step.evidence] : []));
  return [...steps, ...detail.evidence, ...detail.later].flatMap(({ content }) => {
    const { parent } = fieldsOf(content);
    return typeof parent === "string" ? [parent] : [];
  });
}

/** What proves that the new version runs; nothing, if nobody says that it does. */
export function proofOf(detail: Detail): readonly string[] {
  if (detail.state !== "SUCCEEDED") return [];
  const since = detail.transitions.findLast((step) => step.to === "CONFIRMING")?.time ?? "";
  const caused = detail.transitions.flatMap((step) => (step.evidence ? [step.evidence] : []));
  const heard = [...detail.evidence, ...caused].filter((each) => each.time >= since);
  const read = heard.filter((each) => versionIn(each) === detail.toVersion);
  const last = read.toSorted((one, other) => one.time.localeCompare(other.time)).at(-1);
  const beats = heard.filter((each) => each.kind === "heartbeat" && fieldsOf(each.content)["status"] === 0).length;
  const found: string[] = [];
  if (last) found.push(words.proven.version(detail.toVersion, formatDateTime(last.time)), words.proven.read(formatCount(read.length)));
  if (beats > 0) found.push(words.proven.beats(formatCount(beats)));
  return found;
}

/** A report, or an answer to what the service asked, in words. */
function saidBy({ kind, content }: Heard): string {
  const told = fieldsOf(content);
  const step = stepText(told["step"]);
  switch (kind) {
    case "response":
      return words.messages.response(step, answerText(told));
    case "no-response":
      return typeof told["reason"] === "string" ? words.messages.silenceWhy(step, told["reason"]) : words.messages.silence(step);
    case "heartbeat":
      return told["status"] === 0 ? words.messages.heartbeat : words.messages.sick(valueText(told["status"]));
    case "dfu":
      return typeof told["parent"] === "string"
        ? words.messages.dfu(deviceNames.get(told["parent"]), valueText(told["rssi"]))
        : words.messages.dfuUnheard;
    default:
      return words.messages.other(kind, valueText(content));
  }
}

function answerText(told: Record<string, unknown>): string {
  const { status, value } = told;
  if (status !== 0) return statusText(status);
  if (value === null || value === undefined) return words.messages.fine;
  if (typeof value === "string") return words.messages.version(versionOf(value) ?? value);
  const { state, percent, error } = fieldsOf(value);
  if (state === undefined) return valueText(value);
  const text = words.messages.state(humanizeName(String(state)), valueText(percent));
  return error === 0 || error === undefined ? text : words.messages.error(text, errorText(error));
}

/** Why an update failed, as devices number it. */
function errorText(error: unknown): string {
  const code = ERRORS[Number(error)];
  return code === undefined ? valueText(error) : reasonOf(code).short;
}

/** Why it was not done, in the words that requests have for it. */
function statusText(status: unknown): string {
  const known: Readonly<Record<string, string>> = en.requests.status;
  return known[String(status)] ?? words.messages.status(valueText(status));
}

function versionIn({ kind, content }: Heard): string | null {
  const { status, value } = fieldsOf(content);
  return kind === "response" && status === 0 && typeof value === "string" ? versionOf(value) : null;
}

/** Versions are read raw: a byte for each part, and one for a beta. */
function versionOf(hex: string): string | null {
  if (!/^(?:[0-9a-f]{2}){3,4}$/.test(hex)) return null;
  const [major, minor, patch, beta] = (hex.match(/../g) ?? []).map((byte) => Number.parseInt(byte, 16));
  const version = `${major}.${minor}.${patch}`;
  return beta ? `${version}-beta.${beta}` : version;
}

function stepText(step: unknown): string {
  const known: Readonly<Record<string, string>> = words.steps;
  return known[String(step)] ?? String(step);
}

function fieldsOf(content: unknown): Record<string, unknown> {
  return typeof content === "object" && content !== null ? { ...content } : {};
}
