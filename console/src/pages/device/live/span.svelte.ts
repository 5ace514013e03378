/** Which time is looked at: one of the ranges up to now, which goes on, or a piece that was chosen, which stands still.
 * Both are part of the address. */
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
const USUAL: Range = "1h";
/** Nothing shorter can be chosen. */
const SHORTEST = 10_000;
const LONGEST = LENGTHS["30d"];
/** The window goes on by about a pixel at a time, and never lags behind by more than some seconds. */
const PIXELS = 600;
const LAG = 5000;

export class Span {
  #page = pageAddress();
  /** The present, which stands still while the reader has paused. */
  now = $state(clock.read());
  #end = $state(clock.read());
  #heard = 0;

  readonly range = $derived(rangeOf(this.#page.query.get("range")));
  readonly piece = $derived(pieceOf(this.#page.query));
  readonly from = $derived(this.piece?.from ?? this.#end - LENGTHS[this.range]);
  readonly to = $derived(this.piece?.to ?? this.#end);
  /** Changes when other numbers are to be asked for, and not while the window goes on by itself. */
  readonly key = $derived(this.piece ? `${this.piece.from}-${this.piece.to}` : this.range);

  /** Time goes on. */
  tick(now: number): void {
    this.now = now;
    const end = Math.max(now, this.#heard);
    if (end - this.#end >= Math.min(LENGTHS[this.range] / PIXELS, LAG)) this.#end = end;
  }

  /** Let the window end right now, before it is asked what is in it. */
  settle(): void {
    if (live.state === "paused") return;
    this.now = clock.read();
    this.#end = Math.max(this.now, this.#heard);
  }

  /** There is a sample of this time: clocks differ, and what is newer than our present shall be seen too. */
  hear(time: number): void {
    this.#heard = Math.max(this.#heard, time + 1);
  }

  choose(range: Range): void {
    this.#go({ range: range === USUAL ? null : range, from: null, to: null });
  }

  zoom(from: number, to: number): void {
    this.#go(piece(from, to));
  }

  /** Half of the time, around the cursor or the middle; all of it was in sight, so none lies in the future. */
  closer(around: number | null): void {
    const half = (this.to - this.from) / 2;
    const start = (around ?? this.from + half) - half / 2;
    const from = Math.min(Math.max(start, this.from), this.to - half);
    this.zoom(from, from + half);
  }

  get isWidest(): boolean {
    return this.to - this.from >= LONGEST;
  }

  /** Twice the time, around the middle; nothing of it lies in the future. */
  wider(): void {
    const length = this.to - this.from;
    const more = Math.min(length, LONGEST - length) / 2;
    const end = Math.min(this.to + more, Math.max(this.to, this.#end));
    this.zoom(end - length - 2 * more, end);
  }

  /** As much time, but earlier (-1) or later (1) by half of it, up to now. Many steps are one way, and not as many to
   * come back. */
  move(direction: -1 | 1): void {
    const half = (this.to - this.from) / 2;
    const step = direction < 0 ? -half : Math.min(half, Math.max(this.#end - this.to, 0));
    this.#page.replaceQuery(this.#with(piece(this.from + step, this.to + step)));
  }

  /** The range up to now again. */
  back(): void {
    this.#go({ from: null, to: null });
  }

  #go(changes: Record<string, string | null>): void {
    this.#page.navigate(this.#with(changes));
  }

  #with(changes: Record<string, string | null>): URLSearchParams {
    return Object.entries(changes).reduce((query, [name, value]) => withParam(query, name, value), this.#page.query);
  }
}

/** A piece of time as the address says it. */
function piece(from: number, to: number): { from: string; to: string } {
  const middle = (from + to) / 2;
  const half = Math.max(to - from, SHORTEST) / 2;
  return { from: String(Math.round(middle - half)), to: String(Math.round(middle + half)) };
}

function rangeOf(text: string | null): Range {
  return RANGES.find((range) => range === text) ?? USUAL;
}

function pieceOf(query: URLSearchParams): { from: number; to: number } | null {
  const from = Number(query.get("from") ?? Number.NaN);
  const to = Number(query.get("to") ?? Number.NaN);
  return Number.isSafeInteger(from) && Number.isSafeInteger(to) && from > 0 && from < to ? { from, to } : null;
}
