/** Why devices failed, in words for whoever has to do something about it. */
import { en } from "../../../text/en";

const words = en.job.reasons;

export interface Reason {
  readonly short: string;
  /** What helps; null: nobody here knows. */
  readonly help: string | null;
}

export function reasonOf(code: string | null): Reason {
  if (code !== null && isKnown(code)) return words[code];
  return { short: code ?? en.job.failures.unknown, help: null };
}

function isKnown(code: string): code is keyof typeof words {
  return Object.hasOwn(words, code);
}
