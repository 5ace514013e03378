/** Filters of the list of alarms. The query of the URL has the parameter names of the REST API. */
import type { Alarm } from "../../alarms/alarm-styles";
import { en } from "../../text/en";
import { parseMac } from "../../text/mac";

export const SEVERITIES = ["critical", "warning", "info"] as const satisfies readonly Alarm["severity"][];

export const RULES = Object.keys(en.alarms.rules);

/** Tabs of the list. */
export type Tab = "open" | "silenced" | "cleared";
export const TABS: readonly Tab[] = ["open", "silenced", "cleared"];

const STATES: Readonly<Record<Tab, AlarmFilter["State"]>> = {
  open: ["open", "acknowledged"],
  silenced: ["silenced"],
  cleared: ["cleared"],
};

export interface AlarmFilter {
  readonly State: (Alarm["state"] | "silenced")[];
  readonly Severity?: Alarm["severity"][];
  readonly Rule?: string;
  /** MAC of a gateway. */
  readonly Gateway?: string;
}

/** Name of a filter that the user can set. */
export type FilterName = Exclude<keyof AlarmFilter, "State">;
export const FILTER_NAMES: readonly FilterName[] = ["Severity", "Rule", "Gateway"];

export function parseTab(query: URLSearchParams): Tab {
  return TABS.find((tab) => tab === query.get("State")) ?? "open";
}

/** Parse the filter of a URL; values that the service would refuse are ignored. */
export function parseFilter(query: URLSearchParams): AlarmFilter {
  const severity = SEVERITIES.find((each) => each === query.get("Severity"));
  const rule = RULES.find((each) => each === query.get("Rule"));
  const mac = parseMac(query.get("Gateway") ?? "");
  return {
    State: STATES[parseTab(query)],
    ...(severity !== undefined && { Severity: [severity] }),
    ...(rule !== undefined && { Rule: rule }),
    ...(mac !== null && { Gateway: mac }),
  };
}

export function isFiltered(filter: AlarmFilter): boolean {
  return FILTER_NAMES.some((name) => filter[name] !== undefined);
}

/** Return whether the service would list an alarm. */
export function matchesFilter(alarm: Alarm, { State, Severity, Rule, Gateway }: AlarmFilter): boolean {
  const isSilenced = alarm.silencedUntil !== null && alarm.state !== "cleared";
  if (!State.includes(alarm.state) && !(isSilenced && State.includes("silenced"))) return false;
  if (Severity && !Severity.includes(alarm.severity)) return false;
  if (Rule !== undefined && alarm.rule !== Rule) return false;
  return Gateway === undefined || alarm.cause.params["gateway"] === Gateway;
}

/** Return whether the service lists an alarm before another one: the most severe first, then the newest. */
export function comesBefore(alarm: Alarm, other: Alarm): boolean {
  const [mine, its] = [alarm, other].map(({ severity }) => SEVERITIES.indexOf(severity)) as [number, number];
  return mine === its ? parseAlarmNumber(alarm) > parseAlarmNumber(other) : mine < its;
}

function parseAlarmNumber({ id }: Alarm): number {
  return Number(id.replace(/^alarm-/, ""));
}
