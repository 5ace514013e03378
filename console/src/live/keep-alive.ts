/** Whether the other end is still there. A connection may die without a word, when a network changes perhaps, and
 * browsers neither send pings nor show those of a service to anybody. So where nothing was heard for a while the service
 * is asked for a word; if nothing at all comes then, there is nobody. */
const QUIET = 25_000;
const PATIENCE = 5000;

export class KeepAlive {
  #heardAt = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isAsked = false;

  constructor(
    readonly ask: () => void,
    readonly lost: () => void,
  ) {}

  /** A connection is there. */
  begin(): void {
    this.heard();
    this.#wait(QUIET);
  }

  /** It is there no more. */
  end(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** Something came. */
  heard(): void {
    this.#heardAt = performance.now();
    this.#isAsked = false;
  }

  /** Whether something came within the last so many milliseconds. */
  isWithin(milliseconds: number): boolean {
    return performance.now() - this.#heardAt < milliseconds;
  }

  /** Somebody has doubts: ask now, unless that was done. */
  prove(): void {
    if (this.#timer === undefined || this.#isAsked) return;
    this.#isAsked = true;
    this.ask();
    this.#wait(PATIENCE);
  }

  // The timer is not set anew with each event, of which there may be hundreds in a second.
  #wait(pause: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#look(), pause);
  }

  #look(): void {
    if (this.#isAsked) return this.lost();
    const left = QUIET - (performance.now() - this.#heardAt);
    if (left > 0) this.#wait(left);
    else this.prove();
  }
}
