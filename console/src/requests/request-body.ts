/** A request as somebody wants it: what is gathered, and what is sent. */
import type { Schemas } from "../api/client";
import { isObject } from "../json";
import type { Form, RequestedProperty } from "./property";

export interface Options {
  /** The MAC of the gateway; empty: the one that hears the device best. */
  gateway: string;
  /** From 0 to 4; empty: as the mesh does it. */
  priority: string;
  seconds: string;
  /** JSON, or nothing. */
  ext: string;
}

export const USUAL: Readonly<Options> = { gateway: "", priority: "", seconds: "15", ext: "" };

const SHORTEST = 100;
const LONGEST = 120_000;

export type Body = Schemas["NewRequest"];

/** The extension that is typed in; null: it is none. */
export function extOf(text: string): Body["ext"] | null {
  if (text.trim() === "") return undefined;
  try {
    const found: unknown = JSON.parse(text);
    return isObject(found) ? found : null;
  } catch {
    return null;
  }
}

export function buildReadBody(subject: RequestedProperty, form: Form, options: Options): Body {
  return { operation: form === "raw" ? "read" : "read-decoded", identifier: subject.called[form], ...common(options) };
}

export function buildWriteBody(subject: RequestedProperty, form: Form, value: unknown, options: Options): Body {
  const ext = form === "decoded" ? extOf(options.ext) : undefined;
  return {
    operation: form === "raw" ? "write" : "write-decoded",
    identifier: subject.called[form],
    value,
    ...(ext ? { ext } : {}),
    ...common(options),
  };
}

/** What every request has, whatever it asks for. */
export function common(options: Options): Pick<Body, "gateway" | "priority" | "timeoutMs"> {
  const time = Math.round(Number(options.seconds) * 1000);
  return {
    timeoutMs: Number.isFinite(time) ? Math.min(Math.max(time, SHORTEST), LONGEST) : Number(USUAL.seconds) * 1000,
    ...(options.gateway === "" ? {} : { gateway: options.gateway }),
    ...(options.priority === "" ? {} : { priority: Number(options.priority) }),
  };
}

/** In which form the values of a request are. */
export function formOf({ operation }: Pick<Body, "operation">): Form {
  return operation === "read" || operation === "write" || operation === "ack" ? "raw" : "decoded";
}

/** Whether a request may change something. */
export function isChange({ operation }: Pick<Body, "operation">): boolean {
  return operation !== "apiversion" && operation !== "read" && operation !== "read-decoded";
}

export function isAck({ operation }: Pick<Body, "operation">): boolean {
  return operation === "ack" || operation === "ack-decoded";
}
