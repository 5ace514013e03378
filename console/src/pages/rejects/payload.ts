/** Display of payloads, which may hold any bytes. */
const CONTROL_PICTURES = 0x2400;
const DELETE = 0x7f;
const DELETE_PICTURE = "␡";
/** Bytes of a payload that the service keeps. */
const KEPT_BYTES = 1024;
const UNREADABLE = "\ufffd";

/** Replace invisible control characters by their pictures. Line ends stay. */
export function showControlCharacters(payload: string): string {
  return [...payload]
    .map((each) => {
      const code = each.codePointAt(0) ?? 0;
      if (code === DELETE) return DELETE_PICTURE;
      return code < 0x20 && each !== "\n" ? String.fromCodePoint(CONTROL_PICTURES + code) : each;
    })
    .join("");
}

/** Return whether the displayed text differs from the payload. */
export function isAltered(payload: string): boolean {
  return payload.includes(UNREADABLE) || showControlCharacters(payload) !== payload;
}

/** Return whether the payload may have been longer than the bytes kept. An undecodable byte appears as a character of
 * three bytes, but counts as one. */
export function isTruncated(payload: string): boolean {
  return new TextEncoder().encode(payload.replaceAll(UNREADABLE, "?")).length >= KEPT_BYTES;
}
