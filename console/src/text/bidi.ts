/** Names inside sentences. A name may be written from right to left, or hold signs that turn whatever stands behind it,
 * an address too: so it is set apart. Where nothing stands behind it on its line, `<bdi>` does as well. */
const TURNING = /[\u0590-\u08ff\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
/** With these a name could end what sets it apart. */
const SIGNS = /[\u202a-\u202e\u2066-\u2069]/g;

/** A name as part of a sentence. Most turn nothing, and stay as they are: people copy them, and look for them. */
export function isolateBidi(name: string): string {
  return TURNING.test(name) ? `\u2068${name.replaceAll(SIGNS, "")}\u2069` : name;
}
