/** Editors for values, chosen by the type in the notation of the catalogue. */
import { en } from "../text/en";
import { formatDecimal } from "../text/format";
import type { Form, RequestedProperty } from "./property";

export type Editor =
  | { readonly kind: "none" }
  | { readonly kind: "flag" }
  | { readonly kind: "number"; readonly min: number; readonly max: number; readonly step: number }
  | { readonly kind: "words"; readonly words: readonly string[] }
  | { readonly kind: "text"; readonly type: string }
  | { readonly kind: "json"; readonly type: string | null }
  | { readonly kind: "hex" };

/** A parsed value, or what is wrong with the input. */
export type ParsedValue = { readonly value: unknown } | { readonly wrong: string };

const NUMBER = /^([us])(8|16|32|48)(?:\/(\d+))?(?: (-?\d+)\.\.(-?\d+))?$/;
const ENUMERATION = /^[us]\d+\((.+)\)$/;
const TEXT = /^(?:text|mac|version4?|hex\(\d+\)|dotted\(\d+\))$/;
const BYTES = /^(?:[0-9a-f]{2})*$/;
const FLOAT = { kind: "number", min: -Infinity, max: Infinity, step: 0 } as const;
const wrong = en.requests.value.wrong;

export function selectEditor(subject: RequestedProperty, form: Form): Editor {
  const type = subject.entry?.type ?? null;
  if (type === "void") return { kind: "none" };
  if (form === "raw") return { kind: "hex" };
  if (type === null) return { kind: "json", type };
  if (type === "bool") return { kind: "flag" };
  if (type === "float") return FLOAT;
  if (TEXT.test(type)) return { kind: "text", type };
  const words = ENUMERATION.exec(type)?.[1];
  if (words !== undefined) return { kind: "words", words: words.split(",").map((word) => word.split("=")[0]!.trim()) };
  return parseNumberType(type) ?? { kind: "json", type };
}

function parseNumberType(type: string): Editor | null {
  const found = NUMBER.exec(type);
  if (found === null) return null;
  const [, sign, bits, divisor, low, high] = found;
  const scale = Number(divisor ?? 1);
  const values = 2 ** Number(bits);
  const least = sign === "s" ? -values / 2 : 0;
  // The catalogue gives limits before the division.
  return {
    kind: "number",
    min: Number(low ?? least) / scale,
    max: Number(high ?? least + values - 1) / scale,
    step: 1 / scale,
  };
}

/** Parse the input as the value to write. */
export function parseValue(editor: Editor, text: string): ParsedValue {
  if (editor.kind === "none") return { value: null };
  if (editor.kind === "text") return { value: text };
  const input = text.trim();
  if (editor.kind === "hex") {
    const hex = input.toLowerCase().replaceAll(/\s/g, "");
    return BYTES.test(hex) ? { value: hex === "" ? null : hex } : { wrong: wrong.hex };
  }
  if (input === "") return { wrong: wrong.missing };
  if (editor.kind === "flag") return { value: input === "true" };
  if (editor.kind === "words") return { value: input };
  if (editor.kind === "json") return parseJson(input);
  return checkNumber(editor, Number(input));
}

function checkNumber({ min, max, step }: Extract<Editor, { kind: "number" }>, value: number): ParsedValue {
  if (!Number.isFinite(value)) return { wrong: wrong.number };
  if (value < min || value > max) return { wrong: wrong.limits(formatDecimal(min), formatDecimal(max)) };
  const steps = step === 0 ? 0 : value / step;
  if (Math.abs(steps - Math.round(steps)) > 1e-6) return { wrong: wrong.step(formatDecimal(step)) };
  return { value };
}

function parseJson(text: string): ParsedValue {
  try {
    return { value: JSON.parse(text) };
  } catch {
    return { wrong: wrong.json };
  }
}

/** Format a known value as initial input of an editor. */
export function formatForEditor(editor: Editor, value: unknown, raw: string | null): string {
  if (editor.kind === "none") return "";
  if (editor.kind === "hex") return raw ?? "";
  if (value === null || value === undefined) return "";
  if (editor.kind === "json") return JSON.stringify(value, null, 2);
  return String(value);
}
