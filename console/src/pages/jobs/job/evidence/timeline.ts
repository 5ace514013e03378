/** Timeline of one execution: state transitions with their causes, and other evidence, in order of time. */
import type { Schemas } from "../../../../api/client";
import { deviceNames } from "../../../../api/device-names.svelte";
import { type ExecutionState, getExecutionStyle } from "../../../../jobs/states";
import { en } from "../../../../text/en";
import { formatCount, humanizeName, formatDateTime, toSentence, valueText } from "../../../../text/format";
import { describeReason } from "../reason-codes";

export type Detail = Schemas["ExecutionDetail"];
type Evidence = Schemas["Evidence"];

export interface TimelineEntry {
  readonly time: string;
  readonly attempt: number;
  /** State after the transition; null: evidence that changed no state. */
  readonly state: ExecutionState | null;
  readonly title: string;
  /** Cause and content of the evidence; null: none. */
  readonly text: string | null;
  /** User or API key that caused the transition; null: the service itself. */
  readonly actor: string | null;
  /** Whether the evidence arrived after the execution had ended. */
  readonly isLater: boolean;
}

const words = en.job.evidence;
/** Reason codes by the error number that a device reports. */
const ERROR_REASONS = [
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
/** Actor of transitions that the service makes itself. */
const SERVICE = "meshfleet";

export function buildTimeline(detail: Detail): readonly TimelineEntry[] {
  const steps = detail.transitions.map((step): TimelineEntry => {
    const to = getExecutionStyle(step.to).word;
    return {
      time: step.time,
      attempt: step.attempt,
      state: step.to,
      title: step.from === null ? to : words.step(getExecutionStyle(step.from).word, to),
      text: [toSentence(step.cause), step.evidence ? formatEvidence(step.evidence) : ""].filter((part) => part !== "").join(" "),
      actor: step.actor === SERVICE ? null : step.actor,
      isLater: false,
    };
  });
  const toEntries = (evidence: readonly Evidence[], isLater: boolean): TimelineEntry[] =>
    evidence.map((each) => ({
      time: each.time,
      attempt: each.attempt,
      state: null,
      title: formatEvidence(each),
      text: null,
      actor: null,
      isLater,
    }));
  // Sorting is stable: at equal times the transition precedes the evidence that belongs to it.
  return [...steps, ...toEntries(detail.evidence, false), ...toEntries(detail.later, true)].sort((one, other) =>
    one.time.localeCompare(other.time),
  );
}

/** Return the MACs of the parents named in the evidence. */
export function collectParents(detail: Detail): readonly string[] {
  const steps = detail.transitions.flatMap((step) => (step.evidence ? [step.evidence] : []));
  return [...steps, ...detail.evidence, ...detail.later].flatMap(({ content }) => {
    const { parent } = toRecord(content);
    return typeof parent === "string" ? [parent] : [];
  });
}

/** Return what proves that the device runs the new version; empty unless the execution succeeded. */
export function collectProof(detail: Detail): readonly string[] {
  if (detail.state !== "SUCCEEDED") return [];
  const since = detail.transitions.findLast((step) => step.to === "CONFIRMING")?.time ?? "";
  const caused = detail.transitions.flatMap((step) => (step.evidence ? [step.evidence] : []));
  const evidence = [...detail.evidence, ...caused].filter((each) => each.time >= since);
  const reads = evidence.filter((each) => parseReportedVersion(each) === detail.toVersion);
  const last = reads.toSorted((one, other) => one.time.localeCompare(other.time)).at(-1);
  const heartbeats = evidence.filter((each) => each.kind === "heartbeat" && toRecord(each.content)["status"] === 0).length;
  const proof: string[] = [];
  if (last) proof.push(words.proven.version(detail.toVersion, formatDateTime(last.time)), words.proven.read(formatCount(reads.length)));
  if (heartbeats > 0) proof.push(words.proven.beats(formatCount(heartbeats)));
  return proof;
}

/** Format a report or a response as a sentence. */
function formatEvidence({ kind, content }: Evidence): string {
  const fields = toRecord(content);
  const step = formatStep(fields["step"]);
  switch (kind) {
    case "response":
      return words.messages.response(step, formatResponse(fields));
    case "no-response":
      return typeof fields["reason"] === "string" ? words.messages.silenceWhy(step, fields["reason"]) : words.messages.silence(step);
    case "heartbeat":
      return fields["status"] === 0 ? words.messages.heartbeat : words.messages.sick(valueText(fields["status"]));
    case "dfu":
      return typeof fields["parent"] === "string"
        ? words.messages.dfu(deviceNames.get(fields["parent"]), valueText(fields["rssi"]))
        : words.messages.dfuUnheard;
    default:
      return words.messages.other(kind, valueText(content));
  }
}

function formatResponse(fields: Record<string, unknown>): string {
  const { status, value } = fields;
  if (status !== 0) return formatStatus(status);
  if (value === null || value === undefined) return words.messages.fine;
  if (typeof value === "string") return words.messages.version(decodeVersion(value) ?? value);
  const { state, percent, error } = toRecord(value);
  if (state === undefined) return valueText(value);
  const text = words.messages.state(humanizeName(String(state)), valueText(percent));
  return error === 0 || error === undefined ? text : words.messages.error(text, formatError(error));
}

/** Format the error number that a device reports for a failed update. */
function formatError(error: unknown): string {
  const code = ERROR_REASONS[Number(error)];
  return code === undefined ? valueText(error) : describeReason(code).short;
}

/** Format a response status with the texts of the request pages. */
function formatStatus(status: unknown): string {
  const texts: Readonly<Record<string, string>> = en.requests.status;
  return texts[String(status)] ?? words.messages.status(valueText(status));
}

/** Return the version in a successful read response; null: it is another kind of evidence. */
function parseReportedVersion({ kind, content }: Evidence): string | null {
  const { status, value } = toRecord(content);
  return kind === "response" && status === 0 && typeof value === "string" ? decodeVersion(value) : null;
}

/** Decode a version that was read raw: one byte per part, and one for a beta. Return null for any other value. */
function decodeVersion(hex: string): string | null {
  if (!/^(?:[0-9a-f]{2}){3,4}$/.test(hex)) return null;
  const [major, minor, patch, beta] = (hex.match(/../g) ?? []).map((byte) => Number.parseInt(byte, 16));
  const version = `${major}.${minor}.${patch}`;
  return beta ? `${version}-beta.${beta}` : version;
}

function formatStep(step: unknown): string {
  const texts: Readonly<Record<string, string>> = words.steps;
  return texts[String(step)] ?? String(step);
}

function toRecord(content: unknown): Record<string, unknown> {
  return typeof content === "object" && content !== null ? { ...content } : {};
}
