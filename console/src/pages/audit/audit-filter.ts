/** Filter of the audit log, stored in the query of the URL under the parameter names of the REST API. */
import { parseMac } from "../../text/mac";

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
