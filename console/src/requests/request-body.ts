/** Options and bodies of requests. */
import type { Schemas } from "../api/client";
import { isObject } from "../json";
import type { Form, RequestedProperty } from "./property";

export interface RequestOptions {
  /** MAC of the gateway; empty: the one that receives the device best. */
  gateway: string;
  /** Priority from 0 to 4; empty: the default of the mesh. */
  priority: string;
  seconds: string;
  /** Extension as JSON; may be empty. */
  ext: string;
}

export const DEFAULT_OPTIONS: Readonly<RequestOptions> = { gateway: "", priority: "", seconds: "15", ext: "" };

const MIN_TIMEOUT = 100;
const MAX_TIMEOUT = 120_000;

export type RequestBody = Schemas["NewRequest"];

/** Parse the extension; undefined if empty, null if invalid. */
export function parseExtension(text: string): RequestBody["ext"] | null {
  if (text.trim() === "") return undefined;
  try {
    const found: unknown = JSON.parse(text);
    return isObject(found) ? found : null;
  } catch {
    return null;
  }
}

export function buildReadBody(subject: RequestedProperty, form: Form, options: RequestOptions): RequestBody {
  return { operation: form === "raw" ? "read" : "read-decoded", identifier: subject.identifiers[form], ...buildCommonFields(options) };
}

export function buildWriteBody(subject: RequestedProperty, form: Form, value: unknown, options: RequestOptions): RequestBody {
  const ext = form === "decoded" ? parseExtension(options.ext) : undefined;
  return {
    operation: form === "raw" ? "write" : "write-decoded",
    identifier: subject.identifiers[form],
    value,
    ...(ext ? { ext } : {}),
    ...buildCommonFields(options),
  };
}

/** Return the fields that all requests have. */
export function buildCommonFields(options: RequestOptions): Pick<RequestBody, "gateway" | "priority" | "timeoutMs"> {
  const time = Math.round(Number(options.seconds) * 1000);
  return {
    timeoutMs: Number.isFinite(time) ? Math.min(Math.max(time, MIN_TIMEOUT), MAX_TIMEOUT) : Number(DEFAULT_OPTIONS.seconds) * 1000,
    ...(options.gateway === "" ? {} : { gateway: options.gateway }),
    ...(options.priority === "" ? {} : { priority: Number(options.priority) }),
  };
}

/** Return the format of the values of a request. */
export function getForm({ operation }: Pick<RequestBody, "operation">): Form {
  return operation === "read" || operation === "write" || operation === "ack" ? "raw" : "decoded";
}

/** Return whether a request may change something. */
export function isChange({ operation }: Pick<RequestBody, "operation">): boolean {
  return operation !== "apiversion" && operation !== "read" && operation !== "read-decoded";
}

export function isAck({ operation }: Pick<RequestBody, "operation">): boolean {
  return operation === "ack" || operation === "ack-decoded";
}
