/** Draft of a request: the chosen and typed values, and the body built from them. */
import type { Schemas } from "../../../api/client";
import { selectEditor, parseValue } from "../../../requests/value-editor";
import { type RequestBody, type RequestOptions, DEFAULT_OPTIONS, buildCommonFields, parseExtension, buildReadBody, buildWriteBody } from "../../../requests/request-body";
import { type Form, type RequestedProperty, parseProperty } from "../../../requests/property";
import { en } from "../../../text/en";
import { parseMac } from "../../../text/mac";

export const VERBS = ["read", "write", "apiversion", "ack"] as const;

export type Verb = (typeof VERBS)[number];

/** Fields for a device outside the mesh; empty if not used. */
export interface Access {
  extender: string;
  type: Schemas["AccessType"] | "";
  publicKey: string;
  key: string;
}

export interface Draft {
  verb: Verb;
  /** Property or series, by name or identifier. */
  typed: string;
  /** Chosen form of the value; null for the default of the property. */
  form: Form | null;
  text: string;
  /** Whether NULL is written. */
  isNull: boolean;
  time: string;
  /** Type of an ack. */
  type: string;
  options: RequestOptions;
  access: Access;
}

/** Error of a field. */
export interface DraftError {
  readonly at: "typed" | "text" | "time" | "ext" | "extender" | "key";
  readonly why: string;
}

export type BuildResult = { readonly body: RequestBody } | { readonly wrong: DraftError };

const HEX = /^(?:[0-9a-f]{2})+$/i;
const STARTS_WITH_DATE = /^\d{4}-\d\d-\d\dT/i;
const HAS_ZONE = /(?:z|[+-]\d\d:?\d\d)$/i;
const errorTexts = en.messages.send.wrong;

export function createDraft(): Draft {
  const access: Access = { extender: "", type: "", publicKey: "", key: "" };
  const options = { ...DEFAULT_OPTIONS };
  return { verb: "read", typed: "", form: null, text: "", isNull: false, time: "", type: "0", options, access };
}

/** Return the chosen form if the property has it, otherwise its default. */
export function selectForm(draft: Draft, subject: RequestedProperty | null): Form {
  return subject?.forms.find((each) => each === draft.form) ?? subject?.forms[0] ?? "decoded";
}

/** Build the body of a draft, or return its first error. */
export function buildBody(draft: Draft): BuildResult {
  if (draft.verb === "apiversion") return { body: { operation: "apiversion", ...buildCommonFields(draft.options) } };
  const subject = parseProperty(draft.typed);
  if (subject === null) return { wrong: { at: "typed", why: errorTexts.identifier } };
  const form = selectForm(draft, subject);
  if (draft.verb === "ack") return buildAck(draft, subject, form);
  const request = draft.verb === "read" ? { body: buildReadBody(subject, form, draft.options) } : buildWrite(draft, subject, form);
  return "wrong" in request ? request : withAccess(request.body, draft.access);
}

function buildWrite(draft: Draft, subject: RequestedProperty, form: Form): BuildResult {
  if (form === "decoded" && parseExtension(draft.options.ext) === null) {
    return { wrong: { at: "ext", why: en.requests.value.wrong.ext } };
  }
  // Only decoded values can be NULL.
  const given = draft.isNull && form === "decoded" ? { value: null } : parseValue(selectEditor(subject, form), draft.text);
  if ("wrong" in given) return { wrong: { at: "text", why: given.wrong } };
  return { body: buildWriteBody(subject, form, given.value, draft.options) };
}

function buildAck(draft: Draft, subject: RequestedProperty, form: Form): BuildResult {
  const text = draft.time.trim();
  // A time without a zone is UTC, as in reports; browsers would read it as local time.
  const time = new Date(HAS_ZONE.test(text) ? text : `${text}Z`);
  if (!STARTS_WITH_DATE.test(text) || Number.isNaN(time.getTime())) return { wrong: { at: "time", why: errorTexts.time } };
  return {
    body: {
      operation: form === "raw" ? "ack" : "ack-decoded",
      identifier: subject.identifiers[form],
      time: time.toISOString(),
      type: Number(draft.type),
      ...buildCommonFields(draft.options),
    },
  };
}

function withAccess(body: RequestBody, { extender, type, publicKey, key }: Access): BuildResult {
  const mac = parseMac(extender);
  if (extender.trim() !== "" && mac === null) return { wrong: { at: "extender", why: errorTexts.extender } };
  const keys = { publicKey: publicKey.trim(), key: key.trim() };
  if (Object.values(keys).some((each) => each !== "" && !HEX.test(each))) return { wrong: { at: "key", why: errorTexts.key } };
  return {
    body: {
      ...body,
      ...(mac !== null && { extenderId: mac }),
      ...(type !== "" && { accessType: type }),
      ...(keys.publicKey !== "" && { publicKey: keys.publicKey }),
      ...(keys.key !== "" && { key: keys.key }),
    },
  };
}

/** Format a body for display. Keys are hidden: only the gateway may see them. */
export function formatBody(body: RequestBody): string {
  const hidden = { ...(body.publicKey && { publicKey: "…" }), ...(body.key && { key: "…" }) };
  return JSON.stringify({ ...body, ...hidden }, null, 2);
}
