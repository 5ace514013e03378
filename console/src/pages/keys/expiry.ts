/** Expiry of an API key. */
export type Span = "never" | "month" | "quarter" | "year" | "day";

const DAY_MS = 86_400_000;
const DAYS: Readonly<Record<Exclude<Span, "never" | "day">, number>> = { month: 30, quarter: 90, year: 365 };

/** Return the expiry in milliseconds since 1970; null: never; undefined: no valid day is chosen yet. A chosen day lasts
 * until its end in the time zone of the browser. */
export function computeExpiry(span: Span, day: string, now: number): number | null | undefined {
  if (span === "never") return null;
  if (span !== "day") return now + DAYS[span] * DAY_MS;
  const expiry = Date.parse(`${day}T23:59:59`);
  return Number.isNaN(expiry) ? undefined : expiry;
}
