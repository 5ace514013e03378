/** Time span that the charts show: a range up to now, which moves on, or a fixed interval. Both are part of the URL. */
import { clock } from "../../../clock.svelte";
import { live } from "../../../live/socket.svelte";
import { pageAddress } from "../../../page-address.svelte";
import { withParam } from "../../../query";

export const RANGES = ["15m", "1h", "24h", "7d", "30d"] as const;
export type Range = (typeof RANGES)[number];

const MINUTE = 60_000;
const LENGTHS: Record<Range, number> = {
  "15m": 15 * MINUTE,
  "1h": 60 * MINUTE,
  "24h": 24 * 60 * MINUTE,
  "7d": 7 * 24 * 60 * MINUTE,
  "30d": 30 * 24 * 60 * MINUTE,
};
const DEFAULT_RANGE: Range = "1h";
/** Shortest interval, in milliseconds. */
const MIN_LENGTH = 10_000;
const MAX_LENGTH = LENGTHS["30d"];
/** The span moves on in steps of about a pixel, and of at most `MAX_LAG` milliseconds. */
const STEPS_PER_SPAN = 600;
const MAX_LAG = 5000;

/** Time span shown, backed by the query parameters `range`, `from` and `to`. */
export class Span {
  #page = pageAddress();
  /** Current time in milliseconds; frozen while live updates are paused. */
  now = $state(clock.read());
  #end = $state(clock.read());
  #latestSample = 0;

  readonly range = $derived(parseRange(this.#page.query.get("range")));
  readonly interval = $derived(parseInterval(this.#page.query));
  readonly from = $derived(this.interval?.from ?? this.#end - LENGTHS[this.range]);
  readonly to = $derived(this.interval?.to ?? this.#end);
  /** Key of the data to load: unchanged while the span only moves on. */
  readonly key = $derived(this.interval ? `${this.interval.from}-${this.interval.to}` : this.range);

  /** Update the current time, and move the span on if that is visible. */
  tick(now: number): void {
    this.now = now;
    const end = Math.max(now, this.#latestSample);
    if (end - this.#end >= Math.min(LENGTHS[this.range] / STEPS_PER_SPAN, MAX_LAG)) this.#end = end;
  }

  /** Move the end of the span to now, before its data are loaded. */
  moveToNow(): void {
    if (live.state === "paused") return;
    this.now = clock.read();
    this.#end = Math.max(this.now, this.#latestSample);
  }

  /** Let the span include a sample of this time: clocks differ, so a sample can be newer than our current time. */
  include(time: number): void {
    this.#latestSample = Math.max(this.#latestSample, time + 1);
  }

  /** Show a range up to now. */
  chooseRange(range: Range): void {
    this.#navigate({ range: range === DEFAULT_RANGE ? null : range, from: null, to: null });
  }

  /** Show a fixed interval. */
  zoom(from: number, to: number): void {
    this.#navigate(buildIntervalQuery(from, to));
  }

  /** Halve the span around the cursor or the middle. The result lies within the span, so not in the future. */
  zoomIn(around: number | null): void {
    const half = (this.to - this.from) / 2;
    const start = (around ?? this.from + half) - half / 2;
    const from = Math.min(Math.max(start, this.from), this.to - half);
    this.zoom(from, from + half);
  }

  get isWidest(): boolean {
    return this.to - this.from >= MAX_LENGTH;
  }

  /** Double the span around the middle, without reaching into the future. */
  zoomOut(): void {
    const length = this.to - this.from;
    const more = Math.min(length, MAX_LENGTH - length) / 2;
    const end = Math.min(this.to + more, Math.max(this.to, this.#end));
    this.zoom(end - length - 2 * more, end);
  }

  /** Move the span by half its length to earlier (-1) or later (1) times, up to now. Replaces the history entry: many
   * steps need one "back", not as many. */
  move(direction: -1 | 1): void {
    const half = (this.to - this.from) / 2;
    const step = direction < 0 ? -half : Math.min(half, Math.max(this.#end - this.to, 0));
    this.#page.replaceQuery(this.#buildQuery(buildIntervalQuery(this.from + step, this.to + step)));
  }

  /** Return to the range up to now. */
  returnToNow(): void {
    this.#navigate({ from: null, to: null });
  }

  #navigate(changes: Record<string, string | null>): void {
    this.#page.navigate(this.#buildQuery(changes));
  }

  #buildQuery(changes: Record<string, string | null>): URLSearchParams {
    return Object.entries(changes).reduce((query, [name, value]) => withParam(query, name, value), this.#page.query);
  }
}

/** Return the query parameters of an interval. */
function buildIntervalQuery(from: number, to: number): { from: string; to: string } {
  const middle = (from + to) / 2;
  const half = Math.max(to - from, MIN_LENGTH) / 2;
  return { from: String(Math.round(middle - half)), to: String(Math.round(middle + half)) };
}

function parseRange(text: string | null): Range {
  return RANGES.find((range) => range === text) ?? DEFAULT_RANGE;
}

function parseInterval(query: URLSearchParams): { from: number; to: number } | null {
  const from = Number(query.get("from") ?? Number.NaN);
  const to = Number(query.get("to") ?? Number.NaN);
  return Number.isSafeInteger(from) && Number.isSafeInteger(to) && from > 0 && from < to ? { from, to } : null;
}
