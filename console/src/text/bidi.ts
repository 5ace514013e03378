/** Isolation of names inside sentences. A name may be written from right to left or contain characters that change the
 * direction of the text after it, even of a MAC. Where nothing follows the name on its line, `<bdi>` is enough. */
const BIDI_CHARACTERS = /[\u0590-\u08ff\u200f\u202a-\u202e\u2066-\u2069\ufb1d-\ufdff\ufe70-\ufeff\u{10800}-\u{10fff}\u{1e800}-\u{1efff}]/u;
/** Characters with which a name could end its own isolation. */
const BIDI_CONTROLS = /[\u202a-\u202e\u2066-\u2069]/g;

/** Isolate a name that changes the text direction. Other names stay unchanged, so that users can copy and search
 * them. */
export function isolateBidi(name: string): string {
  return BIDI_CHARACTERS.test(name) ? `\u2068${name.replaceAll(BIDI_CONTROLS, "")}\u2069` : name;
}
