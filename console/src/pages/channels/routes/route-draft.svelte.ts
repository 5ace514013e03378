/** Form of a route: the texts and choices while a user edits it. */
import { en } from "../../../text/en";
import { DAYS, type Day, type Route } from "./route-sentence";

export type When = "always" | "hours" | "digest";

const words = en.routes.form;
const DEFAULT_GROUP = 300;

/** Return the time zone of the browser. */
export function findBrowserZone(): string {
  return Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
}

export function isTimeZone(zone: string): boolean {
  try {
    return zone !== "" && Intl.DateTimeFormat("en", { timeZone: zone }) !== undefined;
  } catch {
    return false;
  }
}

export class RouteDraft {
  name = $state("");
  severity = $state<"critical" | "warning" | "info">("info");
  rules = $state.raw<readonly string[]>([]);
  labels = $state.raw<readonly string[]>([]);
  gateways = $state.raw<readonly string[]>([]);
  channels = $state.raw<readonly string[]>([]);
  when = $state<When>("always");
  days = $state.raw<readonly Day[]>(DAYS);
  from = $state("07:00");
  to = $state("20:00");
  quiet = $state<Route["quiet"]>("hold");
  digest = $state("08:00");
  zone = $state(findBrowserZone());
  /** Seconds as text: the values of selects. */
  group = $state(String(DEFAULT_GROUP));
  repeat = $state("");
  cleared = $state(true);
  continues = $state(false);

  /** Faults by field; they are shown as soon as they are there, except for what is not chosen yet. */
  readonly faults = $derived.by(() => {
    const hasZone = this.when === "always" || isTimeZone(this.zone.trim());
    return {
      channels: this.channels.length === 0 ? words.noChannel : null,
      days: this.when === "hours" && this.days.length === 0 ? words.noDay : null,
      to: this.when === "hours" && this.from === this.to ? words.sameTime : null,
      zone: hasZone ? null : words.zoneWrong,
    };
  });
  readonly isValid = $derived(
    this.name.trim() !== "" &&
      Object.values(this.faults).every((fault) => fault === null) &&
      (this.when !== "hours" || (this.from !== "" && this.to !== "")) &&
      (this.when !== "digest" || this.digest !== ""),
  );

  /** Create the form of a route; null: of a new one. */
  constructor(route: Route | null) {
    if (route === null) return;
    const { match, hours } = route;
    this.name = route.name;
    this.severity = match?.severityAtLeast ?? "info";
    this.rules = match?.rules ?? [];
    this.labels = match?.labels ?? [];
    this.gateways = match?.gateways ?? [];
    this.channels = route.channels;
    this.quiet = route.quiet;
    this.group = String(route.groupSeconds);
    this.repeat = route.repeatSeconds == null ? "" : String(route.repeatSeconds);
    this.cleared = route.cleared;
    this.continues = route.continue;
    if (hours != null) [this.when, this.days, this.from, this.to] = ["hours", hours.days, hours.from, hours.to];
    if (route.digest != null) [this.when, this.digest] = ["digest", route.digest];
    // Without times the zone of a route means nothing.
    if (this.when !== "always") this.zone = route.timeZone;
  }

  /** Return the route of a valid form. */
  build(): Route {
    const days = DAYS.filter((day) => this.days.includes(day));
    return {
      name: this.name.trim(),
      match: {
        severityAtLeast: this.severity,
        rules: [...this.rules],
        labels: [...this.labels],
        gateways: [...this.gateways],
      },
      channels: [...this.channels],
      timeZone: this.when === "always" ? "UTC" : this.zone.trim(),
      hours: this.when === "hours" ? { days, from: this.from, to: this.to } : null,
      quiet: this.quiet,
      groupSeconds: Number(this.group),
      digest: this.when === "digest" ? this.digest : null,
      cleared: this.cleared,
      repeatSeconds: this.repeat === "" ? null : Number(this.repeat),
      continue: this.continues,
    };
  }
}
