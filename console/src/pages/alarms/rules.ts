/** Rules of alarms in words. A later version of the service may have more rules: these are shown by their names. */
import { en } from "../../text/en";

const RULES = new Map<string, { readonly name: string; readonly text: string }>(Object.entries(en.alarms.rules));

export function formatRule(rule: string): string {
  return RULES.get(rule)?.name ?? rule;
}

/** Return when a rule opens and ends alarms; an empty text if the rule is unknown. */
export function describeRule(rule: string): string {
  return RULES.get(rule)?.text ?? "";
}
