/** Numbers and times as people read them. */
const numbers = new Intl.NumberFormat("en");
const decimals = new Intl.NumberFormat("en", { maximumFractionDigits: 3 });
/** Hours from 0 to 23, everywhere: nobody has to wonder which of two it is. */
const CLOCK = "en-GB";
const moments = new Intl.DateTimeFormat(CLOCK, { dateStyle: "medium", timeStyle: "medium" });
const days = new Intl.DateTimeFormat(CLOCK, { day: "numeric", month: "short" });
const minutes = new Intl.DateTimeFormat(CLOCK, { timeStyle: "short" });
const seconds = new Intl.DateTimeFormat(CLOCK, { timeStyle: "medium" });
const instants = new Intl.DateTimeFormat(CLOCK, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  fractionalSecondDigits: 3,
});
const agos = new Intl.RelativeTimeFormat("en", { style: "narrow", numeric: "always" });
const spans = new Intl.RelativeTimeFormat("en", { numeric: "always" });

const SIZES = ["B", "KiB", "MiB", "GiB"] as const;
const DAY = 86_400_000;
const MINUTE = 60_000;

const STEPS: readonly [Intl.RelativeTimeFormatUnit, number][] = [
  ["day", DAY],
  ["hour", 3_600_000],
  ["minute", MINUTE],
  ["second", 1000],
];

export function formatCount(value: number): string {
  return numbers.format(value);
}

/** A measured number, without digits that nobody reads. */
export function formatDecimal(value: number): string {
  return decimals.format(value);
}

/** How large something is; small numbers with a digit behind the point, so that one sees them grow. */
export function formatBytes(value: number): string {
  const power = Math.min(SIZES.length - 1, Math.max(0, Math.floor(Math.log2(Math.max(1, value)) / 10)));
  const size = value / 1024 ** power;
  return `${power === 0 || size >= 100 ? formatCount(Math.round(size)) : size.toFixed(1)} ${SIZES[power]}`;
}

/** A moment in the reader's own time zone. */
export function formatDateTime(time: string): string {
  return moments.format(new Date(time));
}

/** The time of a day, of milliseconds since 1970. */
export function formatTime(time: number): string {
  return minutes.format(time);
}

/** The time of a day to the second, of milliseconds since 1970. */
export function formatTimeToSecond(time: number): string {
  return seconds.format(time);
}

/** The time of a day to the millisecond, where things happen close to each other. */
export function formatTimeToMillisecond(time: string): string {
  return instants.format(new Date(time));
}

/** In how many seconds or minutes something is to be expected. */
export function formatDelay(seconds: number): string {
  return seconds < 60 ? spans.format(seconds, "second") : spans.format(Math.ceil(seconds / 60), "minute");
}

/** How long something took, or will take, in milliseconds: seconds only where they matter. */
export function formatDuration(time: number): string {
  const whole = Math.max(0, Math.round(time / 1000));
  if (whole < 60) return `${whole} s`;
  const [inHours, inMinutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  if (inHours === 0) return whole < 600 && whole % 60 > 0 ? `${inMinutes} min ${whole % 60} s` : `${inMinutes} min`;
  if (inHours < 48) return inMinutes > 0 ? `${inHours} h ${inMinutes} min` : `${inHours} h`;
  return inHours % 24 > 0 ? `${numbers.format(Math.floor(inHours / 24))} d ${inHours % 24} h` : `${numbers.format(inHours / 24)} d`;
}

/** A moment below a chart, as finely as its marks are apart; both in milliseconds. */
export function formatAxisTime(time: number, step: number): string {
  const style = step >= DAY ? days : step >= MINUTE ? minutes : seconds;
  return style.format(time);
}

/** How long ago a moment was; the future counts as now, since clocks differ. */
export function formatAge(time: string, now: number, justNow: string): string {
  const past = now - Date.parse(time);
  for (const [unit, length] of STEPS) {
    if (past >= length) return agos.format(-Math.floor(past / length), unit);
  }
  return justNow;
}

/** A MAC as it is printed on devices. */
export function formatMac(mac: string): string {
  return (mac.toUpperCase().match(/../g) ?? []).join(":");
}

/** The MAC inside a device id. */
export function parseDeviceId(deviceId: string): string {
  return deviceId.replace(/^bmac-/, "");
}

/** The name of an identifier as people write it: `light-intensity` is "Light intensity". */
export function humanizeName(name: string): string {
  const words = name.replaceAll(/[-_]+/g, " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** A remark as a sentence of its own; an id in front, such as job-7, stays as it is. */
export function toSentence(text: string): string {
  const words = text.trim();
  if (words === "") return "";
  const isWord = /^\p{L}+(?![\p{L}\p{N}_-])/u.test(words);
  return (isWord ? words.charAt(0).toUpperCase() + words.slice(1) : words) + (/[.!?]$/.test(words) ? "" : ".");
}

/** Whatever a device said, on one line. */
export function valueText(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return formatDecimal(value);
  if (typeof value === "string") return value;
  return JSON.stringify(value);
}

/** Two letters that stand for a name. */
export function getInitials(name: string): string {
  const parts = name.split(/[\s._@-]+/u).filter((part) => part !== "");
  const [first = "", second] = parts;
  const letters = second === undefined ? [...first].slice(0, 2) : [[...first][0], [...second][0]];
  return letters.join("").toUpperCase();
}
