/** Texts of a part of the availability. */
import { en } from "../../../text/en";
import { formatCount, formatTime, formatUntil } from "../../../text/format";
import { clock } from "../../../clock.svelte";
import type { Part } from "./hours.svelte";

const words = en.overview.availability;
const shares = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** Format a share of the devices; all only if none is missing. */
export function formatShare(share: number): string {
  return `${shares.format(share < 1 ? Math.min(100 * share, 99.9) : 100)} %`;
}

export function formatPeriod({ start, end }: Part): string {
  return `${formatUntil(start, clock.now)}–${formatTime(Date.parse(end))}`;
}

export function describePart(part: Part): string {
  const { online, offline, alarms, jobs } = part;
  const state = online === null ? words.unknown : words.online(formatShare(online), formatCount(offline ?? 0));
  const marks = [alarms > 0 ? words.alarmsOpened(alarms) : "", jobs > 0 ? words.jobsStarted(jobs) : ""];
  return [`${formatPeriod(part)}: ${state}`, ...marks.filter((each) => each !== "")].join(", ");
}
