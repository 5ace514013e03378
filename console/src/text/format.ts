/** Formats numbers, times and identifiers for display. */
const numbers = new Intl.NumberFormat("en");
const decimals = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });
/** Locale with 24-hour times, to avoid ambiguity. */
const TIME_LOCALE = "en-GB";
const moments = new Intl.DateTimeFormat(TIME_LOCALE, { dateStyle: "medium", timeStyle: "medium" });
const days = new Intl.DateTimeFormat(TIME_LOCALE, { day: "numeric", month: "short" });
const minutes = new Intl.DateTimeFormat(TIME_LOCALE, { timeStyle: "short" });
const seconds = new Intl.DateTimeFormat(TIME_LOCALE, { timeStyle: "medium" });
const instants = new Intl.DateTimeFormat(TIME_LOCALE, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  fractionalSecondDigits: 3,
});
const agos = new Intl.RelativeTimeFormat("en", { style: "narrow", numeric: "always" });
const spans = new Intl.RelativeTimeFormat("en", { numeric: "always" });

const SIZE_UNITS = ["B", "KiB", "MiB", "GiB"] as const;
const DAY = 86_400_000;
const MINUTE = 60_000;

const AGE_UNITS: readonly [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", DAY],
  ["hour", 3_600_000],
  ["minute", MINUTE],
  ["second", 1000],
];

export function formatCount(value: number): string {
  return numbers.format(value);
}

/** Format a measured number with at most three decimals. */
export function formatDecimal(value: number): string {
  return decimals.format(value);
}

/** Format a size in bytes. Small numbers keep one decimal, so that progress is visible. */
export function formatBytes(value: number): string {
  const power = Math.min(SIZE_UNITS.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)));
  const size = value / 1024 ** power;
  return `${power === 0 || size >= 100 ? formatCount(Math.round(size)) : size.toFixed(1)} ${SIZE_UNITS[power]}`;
}

/** Format an ISO time as date and time in the time zone of the browser. */
export function formatDateTime(time: string): string {
  return moments.format(new Date(time));
}

/** Format the time of day without seconds, from milliseconds since 1970. */
export function formatTime(time: number): string {
  return minutes.format(time);
}

/** Format a time in the future without seconds, with its day unless that is today. */
export function formatUntil(time: string, now: number): string {
  const at = Date.parse(time);
  const isToday = new Date(at).toDateString() === new Date(now).toDateString();
  return isToday ? minutes.format(at) : `${days.format(at)}, ${minutes.format(at)}`;
}

/** Format the time of day with seconds, from milliseconds since 1970. */
export function formatTimeToSecond(time: number): string {
  return seconds.format(time);
}

/** Format the time of day with milliseconds, for events that follow each other closely. */
export function formatTimeToMillisecond(time: string): string {
  return instants.format(new Date(time));
}

/** Format a delay in seconds: "in 30 seconds", "in 2 minutes". */
export function formatDelay(seconds: number): string {
  return seconds < 60 ? spans.format(seconds, "second") : spans.format(Math.ceil(seconds / 60), "minute");
}

/** Format a duration in milliseconds, with seconds only where they matter. */
export function formatDuration(time: number): string {
  const seconds = Math.max(0, Math.round(time / 1000));
  if (seconds < 60) return `${seconds} s`;
  const [inHours, inMinutes] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60)];
  if (inHours === 0) return seconds < 600 && seconds % 60 > 0 ? `${inMinutes} min ${seconds % 60} s` : `${inMinutes} min`;
  if (inHours < 48) return inMinutes > 0 ? `${inHours} h ${inMinutes} min` : `${inHours} h`;
  return inHours % 24 > 0 ? `${numbers.format(Math.floor(inHours / 24))} d ${inHours % 24} h` : `${numbers.format(inHours / 24)} d`;
}

/** Format a time of a chart axis as precisely as its ticks are apart; both in milliseconds. */
export function formatAxisTime(time: number, step: number): string {
  const style = step >= DAY ? days : step >= MINUTE ? minutes : seconds;
  return style.format(time);
}

/** Format the age of an ISO time. A time in the future counts as now, since clocks differ. */
export function formatAge(time: string, now: number, justNow: string): string {
  const past = now - Date.parse(time);
  for (const [unit, length] of AGE_UNITS) {
    if (past >= length) return agos.format(-Math.floor(past / length), unit);
  }
  return justNow;
}

/** Format a MAC with colons and capitals, as printed on devices. */
export function formatMac(mac: string): string {
  return (mac.toUpperCase().match(/../g) ?? []).join(":");
}

/** Return the MAC of a device id. */
export function parseDeviceId(deviceId: string): string {
  return deviceId.replace(/^bmac-/, "");
}

/** Format an identifier name for display: `light-intensity` becomes "Light intensity". */
export function humanizeName(name: string): string {
  const words = name.replaceAll(/[-_]+/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** Turn a phrase into a sentence. A leading id such as job-7 keeps its case. */
export function toSentence(text: string): string {
  const words = text.trim();
  if (words === "") return "";
  const isWord = /^\p{L}+(?![\p{L}\p{N}_-])/u.test(words);
  return (isWord ? words.charAt(0).toUpperCase() + words.slice(1) : words) + (/[.!?]$/.test(words) ? "" : ".");
}

/** Format any value of a device on one line. */
export function valueText(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return formatDecimal(value);
  if (typeof value === "string") return value;
  return JSON.stringify(value);
}

/** Return up to two letters for a name. */
export function getInitials(name: string): string {
  const parts = name.split(/[\s._@-]+/u).filter((part) => part !== "");
  const [first = "", second] = parts;
  const letters = second === undefined ? [...first].slice(0, 2) : [[...first][0], [...second][0]];
  return letters.join("").toUpperCase();
}
