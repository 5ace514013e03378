/** Texts for the reason codes of failed executions: what happened, and what to do about it. */
import { en } from "../../../text/en";

const words = en.job.reasons;

export interface Reason {
  readonly short: string;
  /** What to do about it; null: no advice for this code. */
  readonly help: string | null;
}

/** Return the texts for a reason code; for an unknown code the code itself. */
export function describeReason(code: string | null): Reason {
  if (code !== null && isKnownCode(code)) return words[code];
  return { short: code ?? en.job.failures.unknown, help: null };
}

function isKnownCode(code: string): code is keyof typeof words {
  return Object.hasOwn(words, code);
}
