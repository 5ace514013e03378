/** Headline for the reason of a rejected report; the exact sentence of the service is shown after it. */
import { en } from "./en";

const words = en.rejects.reasons;
const HEADLINES: Readonly<Record<string, string>> = {
  payload: words.payload,
  topic: words.topic,
  kind: words.kind,
  identifier: words.identifier,
  gateway: words.gateway,
  device: words.device,
  report: words.report,
};

/** Return the headline for a reason. The service names the invalid part before a colon. */
export function rejectHeadline(reason: string): string {
  const part = /^([\w.[\]-]{1,40}): /.exec(reason)?.[1];
  if (part === undefined) return words.other;
  return Object.hasOwn(HEADLINES, part) ? (HEADLINES[part] ?? words.other) : words.field(part);
}
