/** Parsing of MACs as users type them: with colons, dashes, dots or blanks, in either case, or as a device id. */
const MAC_DIGITS = 12;
const PREFIX = /^\s*bmac-/i;
const SEPARATORS = /[\s:.-]/g;

export type MacCheck =
  | { readonly state: "empty" }
  | { readonly state: "good"; readonly mac: string }
  | { readonly state: "wrong"; readonly sign: string }
  | { readonly state: "short" | "long"; readonly digits: number };

/** Parse a MAC. Return null if the text is not one. */
export function parseMac(text: string): string | null {
  const read = checkMac(text);
  return read.state === "good" ? read.mac : null;
}

/** Check a partly typed MAC. Return its state and what is wrong with it. */
export function checkMac(text: string): MacCheck {
  const digits = text.replace(PREFIX, "").replace(SEPARATORS, "").toLowerCase();
  if (digits === "") return { state: "empty" };
  const sign = [...digits].find((each) => !/[0-9a-f]/.test(each));
  if (sign !== undefined) return { state: "wrong", sign };
  if (digits.length !== MAC_DIGITS) return { state: digits.length < MAC_DIGITS ? "short" : "long", digits: digits.length };
  return { state: "good", mac: digits };
}
