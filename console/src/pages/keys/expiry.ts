/** Until when a key holds. */
export type Span = "never" | "month" | "quarter" | "year" | "day";

const DAY = 86_400_000;
const DAYS: Readonly<Record<Exclude<Span, "never" | "day">, number>> = { month: 30, quarter: 90, year: 365 };

/** The end in milliseconds since 1970; null: there is none; undefined: which day is not said yet. A day is the reader's
 * own, to its end. */
export function endOf(span: Span, day: string, now: number): number | null | undefined {
  if (span === "never") return null;
  if (span !== "day") return now + DAYS[span] * DAY;
  const end = Date.parse(`${day}T23:59:59`);
  return Number.isNaN(end) ? undefined : end;
}
