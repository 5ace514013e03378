/** Log of received reports, newest first, with a maximum length. Only the first rows are rendered, and more on request.
 * While the user reads the list it stands still, and new reports wait. */
import { SvelteSet } from "svelte/reactivity";

import type { LiveEvent } from "../../../live/socket.svelte";
import { type Report, parseReport } from "./report";

const MAX_REPORTS = 300;
/** Minimum height of a row in pixels, to compute how many fill the screen. */
const MIN_ROW_HEIGHT = 48;
const MIN_RENDERED = 20;
/** Number of rows that are rendered in addition on request. */
const RENDER_STEP = 40;
/** Reports per second at which a flood starts, and below which it ends. */
const FLOOD_START = 20;
const FLOOD_END = 10;

/** Reports received since the page was opened or the log was cleared. */
export class ReportLog {
  reports = $state.raw<readonly Report[]>([]);
  #renderedCount = $state(MIN_RENDERED);
  /** Reports that are rendered. */
  readonly rendered = $derived(this.reports.slice(0, this.#renderedCount));
  readonly hasMore = $derived(this.rendered.length < this.reports.length);
  /** Waiting reports, newest first, at most as many as the log holds. */
  #waiting = $state.raw<readonly Report[]>([]);
  /** Number of reports that wait, including those beyond the maximum length. */
  waitingCount = $state(0);
  /** Number of reports that were removed from the end. */
  dropped = $state(0);
  /** Whether reports arrive faster than they can be read. */
  isFlood = $state(false);
  /** Whether events were missed. */
  hasMissed = $state(false);
  /** Whether the user paused the log. */
  isPaused = $state(false);
  /** Whether the user reads the list: with the pointer, the keyboard, or scrolled down. */
  isBeingRead = $state(false);
  /** Numbers of the open reports. */
  readonly opened = new SvelteSet<number>();
  readonly isHeld = $derived(this.isPaused || this.isBeingRead || this.opened.size > 0);

  #count = 0;
  #countBefore = 0;

  /** Add the matching reports of some events, oldest first. */
  add(events: readonly LiveEvent[], matches: (report: Report) => boolean): void {
    const added: Report[] = [];
    for (const event of events) {
      const report = parseReport(event, this.#count);
      if (report === null || !matches(report)) continue;
      this.#count += 1;
      added.push(report);
    }
    if (added.length === 0) return;
    added.reverse();
    if (this.isHeld) {
      this.#waiting = [...added, ...this.#waiting].slice(0, MAX_REPORTS);
      this.waitingCount += added.length;
    } else this.#prepend(added, added.length);
  }

  /** Show the waiting reports. */
  show(): void {
    const waiting = this.#waiting;
    const count = this.waitingCount;
    this.#waiting = [];
    this.waitingCount = 0;
    this.#prepend(waiting, count);
  }

  /** Render more rows. */
  renderMore(): void {
    this.#renderedCount = Math.min(this.#renderedCount + RENDER_STEP, MAX_REPORTS);
  }

  /** Update `isFlood` from the number of reports in the last seconds. */
  measure(seconds: number): void {
    const rate = (this.#count - this.#countBefore) / seconds;
    this.#countBefore = this.#count;
    this.isFlood = rate >= (this.isFlood ? FLOOD_END : FLOOD_START);
  }

  /** Show waiting reports if the log no longer stands still. */
  release(): void {
    if (!this.isHeld && this.waitingCount > 0) this.show();
  }

  /** Apply another filter: drop reports that do not match, and count from now. */
  applyFilter(matches: (report: Report) => boolean): void {
    this.reports = this.reports.filter(matches);
    this.#waiting = this.#waiting.filter(matches);
    this.waitingCount = this.#waiting.length;
    this.dropped = 0;
    this.isFlood = false;
    this.#countBefore = this.#count;
    const remaining = new Set(this.reports.map(({ number }) => number));
    for (const number of this.opened) if (!remaining.has(number)) this.opened.delete(number);
  }

  /** Record that events were missed. Before the first report that is not worth a note. */
  markMissed(): void {
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
    this.#countBefore = 0;
  }

  toggle(report: Report): void {
    if (!this.opened.delete(report.number)) this.opened.add(report.number);
    this.release();
  }

  /** Put reports in front; `count` is how many arrived, including those not kept. */
  #prepend(added: readonly Report[], count: number): void {
    const previousLength = this.reports.length;
    this.reports = [...added, ...this.reports].slice(0, MAX_REPORTS);
    // An open report stays rendered.
    this.#renderedCount = this.opened.size > 0 ? Math.min(this.#renderedCount + added.length, MAX_REPORTS) : countVisibleRows();
    this.dropped += previousLength + count - this.reports.length;
    const oldest = this.reports.at(-1)?.number ?? 0;
    for (const number of this.opened) if (number < oldest) this.opened.delete(number);
  }
}

/** Return the number of rows that fit on the screen. */
function countVisibleRows(): number {
  return Math.max(MIN_RENDERED, Math.ceil(innerHeight / MIN_ROW_HEIGHT));
}
