/** Values of time fields, `datetime-local`: the local time up to the minute. */
const MINUTE = 60_000;
/** Length of a time text up to the minute. */
const MINUTE_LENGTH = "2026-01-01T00:00".length;

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
