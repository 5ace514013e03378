/** Why a report was rejected, first in plain words; the service's own sentence, which is exact, comes behind. */
import { en } from "./en";

const words = en.rejects.reasons;
const KNOWN: Readonly<Record<string, string>> = {
  payload: words.payload,
  topic: words.topic,
  kind: words.kind,
  identifier: words.identifier,
  gateway: words.gateway,
  device: words.device,
  report: words.report,
};

/** The service names the part that is wrong in front of a colon. */
export function rejectHeadline(reason: string): string {
  const part = /^([\w.[\]-]{1,40}): /.exec(reason)?.[1];
  if (part === undefined) return words.other;
  return Object.hasOwn(KNOWN, part) ? (KNOWN[part] ?? words.other) : words.field(part);
}
