/** Reads what was typed into a form, and gathers all that is wrong with it, by field. */
import { en } from "../../../../text/en";
import { formatDecimal } from "../../../../text/format";
import type { Field } from "./fields";

export interface Fault extends Field {
  /** What is wrong. */
  readonly text: string;
}

export interface Limits {
  readonly least: number;
  readonly most: number;
  /** Whether the least itself is too little. */
  readonly isAbove?: boolean;
  readonly isWhole?: boolean;
}

/** What nobody sees: controls, marks of direction, halves of characters, ends of lines. */
const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u;

const words = en.newJob.errors;

export class Reading {
  readonly faults: Fault[] = [];

  fault(field: Field, text: string): void {
    this.faults.push({ ...field, text });
  }

  /** A number within its limits. Of what is wrong the least is given: nothing is sent then. */
  number(field: Field, text: string, limits: Limits): number {
    return this.#numberIn(field, text, limits) ?? limits.least;
  }

  /** A number, or nothing at all. */
  numberOrNone(field: Field, text: string, limits: Limits): number | null {
    return text.trim() === "" ? null : this.#numberIn(field, text, limits);
  }

  /** A name that people will read. */
  name(field: Field, text: string, longest: number): string {
    const name = text.trim();
    if (INVISIBLE.test(name)) this.fault(field, words.invisible);
    else if ([...name].length > longest) this.fault(field, words.long(longest));
    return name;
  }

  /** A moment that was typed in the reader's own time zone; null: none. */
  moment(field: Field, text: string): Date | null {
    if (text === "") return null;
    const time = new Date(text);
    if (!Number.isNaN(time.getTime())) return time;
    this.fault(field, words.moment);
    return null;
  }

  #numberIn(field: Field, text: string, { least, most, isAbove = false, isWhole = false }: Limits): number | null {
    const value = Number(text.trim());
    const isNumber = text.trim() !== "" && Number.isFinite(value);
    const isWithin = value <= most && (isAbove ? value > least : value >= least);
    if (isNumber && isWithin && (!isWhole || Number.isInteger(value))) return value;
    const range = isAbove ? words.above(formatDecimal(least), formatDecimal(most)) : words.between(formatDecimal(least), formatDecimal(most));
    this.fault(field, isWhole ? words.whole(range) : words.number(range));
    return null;
  }
}
