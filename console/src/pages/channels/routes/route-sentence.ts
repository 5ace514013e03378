/** Routes as sentences, such as "Critical → Ops webhook, always." */
import type { Schemas } from "../../../api/client";
import { isolateBidi } from "../../../text/bidi";
import { en } from "../../../text/en";
import { formatDuration } from "../../../text/format";
import { formatRule } from "../../alarms/rules";
import { type Channel, isForPeople } from "../channel-styles";

export type Route = Schemas["AlarmRouteView"];
export type Day = Schemas["RouteHoursView"]["days"][number];

export const DAYS = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"] as const satisfies readonly Day[];

const words = en.routes.sentence;

/** Parts of a sentence: "alarms → target; target. rest". */
export interface RouteSentence {
  readonly alarms: string;
  readonly targets: readonly string[];
  readonly rest: string;
}

/** Describe a route. `formatGateway` returns the name of a gateway. */
export function describeRoute(route: Route, channels: readonly Channel[], formatGateway: (mac: string) => string): RouteSentence {
  const known = route.channels.map((id) => channels.find((channel) => channel.id === id));
  const people = known.filter((channel) => channel === undefined || isForPeople(channel));
  const programs = known.filter((channel) => channel !== undefined && !isForPeople(channel));
  const ends = route.cleared ? [] : [words.withoutEnd];
  return {
    alarms: describeMatch(route, formatGateway),
    // Times and groups are for people: programs get an event for each change at once.
    targets: [
      ...(people.length > 0 ? [[formatNames(people), describeTimes(route), ...ends].join(", ")] : []),
      ...(programs.length > 0 ? [[formatNames(programs), people.length > 0 ? words.atOnce : words.always, ...ends].join(", ")] : []),
    ],
    rest: route.continue ? words.continues : "",
  };
}

/** Return whether the times of a route matter: it has some, and leads to a channel for people. */
export function hasTimes({ hours, digest, channels: ids }: Route, channels: readonly Channel[]): boolean {
  return (hours != null || digest != null) && channels.some((channel) => ids.includes(channel.id) && isForPeople(channel));
}

function describeMatch({ match }: Route, formatGateway: (mac: string) => string): string {
  const { rules = [], labels = [], gateways = [] } = match ?? {};
  return [
    words.severities[match?.severityAtLeast ?? "info"],
    ...(rules.length > 0 ? [words.rules(rules.map(formatRule).join(", "))] : []),
    ...(labels.length > 0 ? [words.labels(labels.map(isolateBidi).join(", "))] : []),
    ...(gateways.length > 0 ? [words.gateways(gateways.map((mac) => isolateBidi(formatGateway(mac))).join(", "))] : []),
  ].join(", ");
}

function formatNames(channels: readonly (Channel | undefined)[]): string {
  return channels
    .map((channel) => {
      if (channel === undefined) return words.missing;
      const name = isolateBidi(channel.name);
      return channel.enabled ? name : words.off(name);
    })
    .join(", ");
}

function describeTimes(route: Route): string {
  const repeat = route.repeatSeconds == null ? [] : [words.repeat(formatSpan(route.repeatSeconds))];
  if (route.digest != null) return [words.digest(route.digest, route.timeZone), ...repeat].join("; ");
  const isCritical = route.match?.severityAtLeast === "critical";
  return [
    // Quiet hours never hold a critical alarm.
    route.hours != null && !isCritical ? describeHours(route, route.hours) : words.always,
    ...(route.groupSeconds > 0 ? [words.group(formatSpan(route.groupSeconds))] : []),
    ...repeat,
  ].join("; ");
}

function describeHours({ timeZone, quiet }: Route, { days, from, to }: Schemas["RouteHoursView"]): string {
  const dayText = days.length === DAYS.length ? "" : `${formatDays(days)} `;
  return `${words.hours(dayText, from, to, timeZone)}, ${words.quiet[quiet]}`;
}

/** Format days in their order; three or more that follow each other become a range. */
export function formatDays(days: readonly Day[]): string {
  const runs: Day[][] = [];
  for (const [index, day] of DAYS.entries()) {
    if (!days.includes(day)) continue;
    const last = runs.at(-1);
    if (last !== undefined && last.at(-1) === DAYS[index - 1]) last.push(day);
    else runs.push([day]);
  }
  const names = en.routes.dayNames;
  return runs
    .map((run) => {
      const [first, last] = [run[0] as Day, run.at(-1) as Day];
      return run.length > 2 ? `${names[first]}–${names[last]}` : run.map((day) => names[day]).join(", ");
    })
    .join(", ");
}

/** Format seconds: "5 min", "1 h". */
export function formatSpan(seconds: number): string {
  return formatDuration(seconds * 1000);
}
