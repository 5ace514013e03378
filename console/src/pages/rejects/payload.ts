/** Payloads as text that can be looked at: they may hold anything. */
const FIRST_PICTURE = 0x2400;
const DELETE = 0x7f;
const DELETE_PICTURE = "␡";
const CUT_AT = 1024;
const UNREADABLE = "\ufffd";

/** The text, with signs in place of control characters that would not be seen; line ends stay. */
export function visible(payload: string): string {
  return [...payload]
    .map((each) => {
      const code = each.codePointAt(0) ?? 0;
      if (code === DELETE) return DELETE_PICTURE;
      return code < 0x20 && each !== "\n" ? String.fromCodePoint(FIRST_PICTURE + code) : each;
    })
    .join("");
}

/** Whether something of it cannot be shown as it was. */
export function isOdd(payload: string): boolean {
  return payload.includes(UNREADABLE) || visible(payload) !== payload;
}

/** Whether it may have been longer: the service keeps so many bytes, and shows those that are no text as three. */
export function isCut(payload: string): boolean {
  return new TextEncoder().encode(payload.replaceAll(UNREADABLE, "?")).length >= CUT_AT;
}
