/** Keep-alive of the live connection. A connection may die silently, and browsers neither send pings nor report those
 * of the service. After a silence the service is pinged; if nothing arrives then, the connection is lost. */
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

  /** Start with a new connection. */
  begin(): void {
    this.heard();
    this.#wait(QUIET);
  }

  /** Stop when the connection is closed. */
  end(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** Record that a message arrived. */
  heard(): void {
    this.#heardAt = performance.now();
    this.#isAsked = false;
  }

  /** Return whether a message arrived within the last milliseconds. */
  isWithin(milliseconds: number): boolean {
    return performance.now() - this.#heardAt < milliseconds;
  }

  /** Ping the service now, unless a ping is pending. */
  prove(): void {
    if (this.#timer === undefined || this.#isAsked) return;
    this.#isAsked = true;
    this.ask();
    this.#wait(PATIENCE);
  }

  // The timer is not reset with each event: there may be hundreds per second.
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
