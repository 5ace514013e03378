/** Which rows are wanted, as the address of the page says it, in the words of the interface for programs. */
import { parseMac } from "../../text/mac";

const MINUTE = 60_000;
/** So long is the text of a time up to its minute. */
const TO_MINUTE = "2026-01-01T00:00".length;

export const NAMES = ["Actor", "Action", "Target", "From", "To"] as const;
export type Name = (typeof NAMES)[number];
export type Wanted = Readonly<Partial<Record<Name, string>>>;

export function wantedIn(query: URLSearchParams): Wanted {
  return Object.fromEntries(
    NAMES.flatMap((name) => {
      const value = query.get(name);
      return value === null || value === "" ? [] : [[name, value]];
    }),
  );
}

/** What somebody typed, as the log names it: devices and gateways are found by their MAC in any spelling. */
export function targetOf(typed: string): string {
  const text = typed.trim();
  const mac = parseMac(text);
  return mac === null ? text : `bmac-${mac}`;
}

/** A time of the address as a field for times has it, in the reader's own time zone; one that is none is not shown. */
export function fieldOf(time: string | undefined): string {
  const at = Date.parse(time ?? "");
  if (Number.isNaN(at)) return "";
  return new Date(at - new Date(at).getTimezoneOffset() * MINUTE).toISOString().slice(0, TO_MINUTE);
}

/** What a field for times says, as the address has it. */
export function timeOf(field: string): string {
  const at = Date.parse(field);
  return Number.isNaN(at) ? "" : new Date(at).toISOString();
}
