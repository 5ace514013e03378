/** Filter of the audit log, stored in the query of the URL under the parameter names of the REST API. */
import { parseMac } from "../../text/mac";

const MINUTE = 60_000;
/** Length of a time text up to the minute. */
const MINUTE_LENGTH = "2026-01-01T00:00".length;

export const NAMES = ["Actor", "Action", "Target", "From", "To"] as const;
export type Name = (typeof NAMES)[number];
export type AuditFilter = Readonly<Partial<Record<Name, string>>>;

export function parseFilter(query: URLSearchParams): AuditFilter {
  return Object.fromEntries(
    NAMES.flatMap((name) => {
      const value = query.get(name);
      return value === null || value === "" ? [] : [[name, value]];
    }),
  );
}

/** Return a typed target as the log names it: devices and gateways by their MAC in any spelling. */
export function parseTarget(typed: string): string {
  const text = typed.trim();
  const mac = parseMac(text);
  return mac === null ? text : `bmac-${mac}`;
}

/** Convert a time of the URL to the value of a time field in the local time zone; empty if it is invalid. */
export function toFieldValue(time: string | undefined): string {
  const at = Date.parse(time ?? "");
  if (Number.isNaN(at)) return "";
  return new Date(at - new Date(at).getTimezoneOffset() * MINUTE).toISOString().slice(0, MINUTE_LENGTH);
}

/** Convert the value of a time field to a time of the URL; empty if it is invalid. */
export function parseFieldValue(field: string): string {
  const at = Date.parse(field);
  return Number.isNaN(at) ? "" : new Date(at).toISOString();
}
