/** What was heard, the newest first: so many reports and no more, however long somebody listens. Only those that are in
 * sight are drawn, until somebody looks further. While somebody reads the list it stands still, and what comes waits. */
import { SvelteSet } from "svelte/reactivity";

import type { LiveEvent } from "../../../live/socket.svelte";
import { type Report, reportIn } from "./report";

const MOST = 300;
/** Pixels of a row at least: so many fill any screen. */
const ROW = 48;
const FEWEST = 20;
/** How many more are drawn for who looks further. */
const FURTHER = 40;
/** Reports in a second from which on nobody can follow, and below which one can again. */
const FLOOD = 20;
const EBB = 10;

export class Log {
  reports = $state.raw<readonly Report[]>([]);
  #reach = $state(FEWEST);
  /** Those of them that are drawn. */
  readonly drawn = $derived(this.reports.slice(0, this.#reach));
  readonly hasMore = $derived(this.drawn.length < this.reports.length);
  /** What waits, the newest first, as far as it would be shown. */
  #waiting = $state.raw<readonly Report[]>([]);
  /** How many wait, or would if there were room for them. */
  waitingCount = $state(0);
  /** How many were heard and are kept no more. */
  dropped = $state(0);
  /** Whether more come than anybody can read. */
  isFlood = $state(false);
  /** Whether something was not heard. */
  hasMissed = $state(false);
  /** Whether somebody wants it to stand still. */
  isPaused = $state(false);
  /** Whether somebody is about to read it: with the pointer, the keyboard, or further down. */
  isRead = $state(false);
  /** The reports that are open. */
  readonly opened = new SvelteSet<number>();
  readonly isHeld = $derived(this.isPaused || this.isRead || this.opened.size > 0);

  #count = 0;
  #before = 0;

  /** Hear events, the oldest first; what does not fit is as if it was never said. */
  take(events: readonly LiveEvent[], fits: (report: Report) => boolean): void {
    const fresh: Report[] = [];
    for (const event of events) {
      const report = reportIn(event, this.#count);
      if (report === null || !fits(report)) continue;
      this.#count += 1;
      fresh.push(report);
    }
    if (fresh.length === 0) return;
    fresh.reverse();
    if (this.isHeld) {
      this.#waiting = [...fresh, ...this.#waiting].slice(0, MOST);
      this.waitingCount += fresh.length;
    } else this.#add(fresh, fresh.length);
  }

  /** Show what waits. */
  show(): void {
    const waiting = this.#waiting;
    const count = this.waitingCount;
    this.#waiting = [];
    this.waitingCount = 0;
    this.#add(waiting, count);
  }

  /** Somebody looks further down. */
  further(): void {
    this.#reach = Math.min(this.#reach + FURTHER, MOST);
  }

  /** So many seconds are over: were there too many reports? */
  measure(seconds: number): void {
    const rate = (this.#count - this.#before) / seconds;
    this.#before = this.#count;
    this.isFlood = rate >= (this.isFlood ? EBB : FLOOD);
  }

  /** Nobody reads it any more: it goes on where it was. */
  release(): void {
    if (!this.isHeld && this.waitingCount > 0) this.show();
  }

  /** Something else is wanted: keep what fits, and forget the rest. What is counted is what is wanted now. */
  keep(fits: (report: Report) => boolean): void {
    this.reports = this.reports.filter(fits);
    this.#waiting = this.#waiting.filter(fits);
    this.waitingCount = this.#waiting.length;
    this.dropped = 0;
    this.isFlood = false;
    this.#before = this.#count;
    const left = new Set(this.reports.map(({ number }) => number));
    for (const number of this.opened) if (!left.has(number)) this.opened.delete(number);
  }

  /** Something was not heard. What was never heard before is not missed. */
  miss(): void {
    if (this.#count > 0) this.hasMissed = true;
  }

  clear(): void {
    this.reports = [];
    this.#waiting = [];
    this.waitingCount = 0;
    this.dropped = 0;
    this.hasMissed = false;
    this.opened.clear();
    this.#count = 0;
    this.#before = 0;
  }

  toggle(report: Report): void {
    if (!this.opened.delete(report.number)) this.opened.add(report.number);
    this.release();
  }

  /** Put reports in front, out of so many that came. */
  #add(fresh: readonly Report[], count: number): void {
    const before = this.reports.length;
    this.reports = [...fresh, ...this.reports].slice(0, MOST);
    // One that is open stays in sight.
    this.#reach = this.opened.size > 0 ? Math.min(this.#reach + fresh.length, MOST) : atFirst();
    this.dropped += before + count - this.reports.length;
    const oldest = this.reports.at(-1)?.number ?? 0;
    for (const number of this.opened) if (number < oldest) this.opened.delete(number);
  }
}

/** As many as fit on the screen. */
function atFirst(): number {
  return Math.max(FEWEST, Math.ceil(innerHeight / ROW));
}
