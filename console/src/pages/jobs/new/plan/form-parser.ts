/** Parser of form values that collects the faults of all fields. */
import { en } from "../../../../text/en";
import { formatDecimal } from "../../../../text/format";
import type { Field } from "./fields";

export interface Fault extends Field {
  /** Description of the fault. */
  readonly text: string;
}

export interface Limits {
  readonly min: number;
  readonly max: number;
  /** Whether the value must be greater than `min`. */
  readonly isMinExclusive?: boolean;
  readonly isInteger?: boolean;
}

/** Invisible characters: controls, direction marks, lone surrogates, line and paragraph separators. */
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u;

const words = en.newJob.errors;

export class FormParser {
  readonly faults: Fault[] = [];

  addFault(field: Field, text: string): void {
    this.faults.push({ ...field, text });
  }

  /** Parse a number within limits. Return the minimum on a fault: the form is not sent then. */
  parseNumber(field: Field, text: string, limits: Limits): number {
    return this.#parseInRange(field, text, limits) ?? limits.min;
  }

  /** Parse a number; null: the text is empty or has a fault. */
  parseOptionalNumber(field: Field, text: string, limits: Limits): number | null {
    return text.trim() === "" ? null : this.#parseInRange(field, text, limits);
  }

  /** Parse a name: trimmed, without invisible characters, not too long. */
  parseName(field: Field, text: string, maxLength: number): string {
    const name = text.trim();
    if (INVISIBLE.test(name)) this.addFault(field, words.invisible);
    else if ([...name].length > maxLength) this.addFault(field, words.long(maxLength));
    return name;
  }

  /** Parse a time in the time zone of the browser; null: the text is empty or has a fault. */
  parseTime(field: Field, text: string): Date | null {
    if (text === "") return null;
    const time = new Date(text);
    if (!Number.isNaN(time.getTime())) return time;
    this.addFault(field, words.moment);
    return null;
  }

  #parseInRange(field: Field, text: string, { min, max, isMinExclusive = false, isInteger = false }: Limits): number | null {
    const value = Number(text.trim());
    const isNumber = text.trim() !== "" && Number.isFinite(value);
    const isWithin = value <= max && (isMinExclusive ? value > min : value >= min);
    if (isNumber && isWithin && (!isInteger || Number.isInteger(value))) return value;
    const range = isMinExclusive ? words.above(formatDecimal(min), formatDecimal(max)) : words.between(formatDecimal(min), formatDecimal(max));
    this.addFault(field, isInteger ? words.whole(range) : words.number(range));
    return null;
  }
}
