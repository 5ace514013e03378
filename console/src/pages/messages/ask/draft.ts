/** A request by hand: what somebody has chosen and typed, and the body that it makes. */
import type { Schemas } from "../../../api/client";
import { selectEditor, parseValue } from "../../../requests/value-editor";
import { type RequestBody, type RequestOptions, DEFAULT_OPTIONS, buildCommonFields, parseExtension, buildReadBody, buildWriteBody } from "../../../requests/request-body";
import { type Form, type RequestedProperty, parseProperty } from "../../../requests/property";
import { en } from "../../../text/en";
import { parseMac } from "../../../text/mac";

export const VERBS = ["read", "write", "apiversion", "ack"] as const;

export type Verb = (typeof VERBS)[number];

/** How a device outside the mesh is reached. */
export interface Access {
  extender: string;
  type: Schemas["AccessType"] | "";
  publicKey: string;
  key: string;
}

export interface Draft {
  verb: Verb;
  /** The property or the series, by its name or identifier. */
  typed: string;
  /** The form that is wanted; null: the better one. */
  form: Form | null;
  text: string;
  /** Whether no value is written. */
  isNull: boolean;
  time: string;
  /** The type of an ack. */
  type: string;
  options: RequestOptions;
  access: Access;
}

/** What is wrong, and where. */
export interface Wrong {
  readonly at: "typed" | "text" | "time" | "ext" | "extender" | "key";
  readonly why: string;
}

export type Made = { readonly body: RequestBody } | { readonly wrong: Wrong };

const HEX = /^(?:[0-9a-f]{2})+$/i;
const DATED = /^\d{4}-\d\d-\d\dT/i;
const ZONED = /(?:z|[+-]\d\d:?\d\d)$/i;
const wrongs = en.messages.send.wrong;

export function emptyDraft(): Draft {
  const access: Access = { extender: "", type: "", publicKey: "", key: "" };
  const options = { ...DEFAULT_OPTIONS };
  return { verb: "read", typed: "", form: null, text: "", isNull: false, time: "", type: "0", options, access };
}

export function formIn(draft: Draft, subject: RequestedProperty | null): Form {
  return subject?.forms.find((each) => each === draft.form) ?? subject?.forms[0] ?? "decoded";
}

/** The body of what is chosen so far, or what keeps it from being one. */
export function made(draft: Draft): Made {
  if (draft.verb === "apiversion") return { body: { operation: "apiversion", ...buildCommonFields(draft.options) } };
  const subject = parseProperty(draft.typed);
  if (subject === null) return { wrong: { at: "typed", why: wrongs.identifier } };
  const form = formIn(draft, subject);
  if (draft.verb === "ack") return ackOf(draft, subject, form);
  const order = draft.verb === "read" ? { body: buildReadBody(subject, form, draft.options) } : writeOf(draft, subject, form);
  return "wrong" in order ? order : accessed(order.body, draft.access);
}

function writeOf(draft: Draft, subject: RequestedProperty, form: Form): Made {
  if (form === "decoded" && parseExtension(draft.options.ext) === null) {
    return { wrong: { at: "ext", why: en.requests.value.wrong.ext } };
  }
  // Of raw values nothing is typed for NULL, and a command has none.
  const given = draft.isNull && form === "decoded" ? { value: null } : parseValue(selectEditor(subject, form), draft.text);
  if ("wrong" in given) return { wrong: { at: "text", why: given.wrong } };
  return { body: buildWriteBody(subject, form, given.value, draft.options) };
}

function ackOf(draft: Draft, subject: RequestedProperty, form: Form): Made {
  const text = draft.time.trim();
  // A time without a zone is one in UTC, as reports have it; browsers would take it for ours.
  const time = new Date(ZONED.test(text) ? text : `${text}Z`);
  if (!DATED.test(text) || Number.isNaN(time.getTime())) return { wrong: { at: "time", why: wrongs.time } };
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

function accessed(body: RequestBody, { extender, type, publicKey, key }: Access): Made {
  const mac = parseMac(extender);
  if (extender.trim() !== "" && mac === null) return { wrong: { at: "extender", why: wrongs.extender } };
  const keys = { publicKey: publicKey.trim(), key: key.trim() };
  if (Object.values(keys).some((each) => each !== "" && !HEX.test(each))) return { wrong: { at: "key", why: wrongs.key } };
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

/** A body as it may be shown: keys are for the gateway alone. */
export function shownBody(body: RequestBody): string {
  const hidden = { ...(body.publicKey && { publicKey: "…" }), ...(body.key && { key: "…" }) };
  return JSON.stringify({ ...body, ...hidden }, null, 2);
}
