/** Keep-alive of the live connection. A connection may die silently, and browsers neither send pings nor report those
 * of the service. After a silence the service is pinged; if nothing arrives then, the connection is lost. */
const PING_INTERVAL = 25_000;
const PONG_TIMEOUT = 5000;

export class KeepAlive {
  #receivedAt = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isPingPending = false;

  constructor(
    readonly ask: () => void,
    readonly lost: () => void,
  ) {}

  /** Start with a new connection. */
  begin(): void {
    this.heard();
    this.#schedule(PING_INTERVAL);
  }

  /** Stop when the connection is closed. */
  end(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  /** Record that a message arrived. */
  heard(): void {
    this.#receivedAt = performance.now();
    this.#isPingPending = false;
  }

  /** Return whether a message arrived within the last milliseconds. */
  isWithin(milliseconds: number): boolean {
    return performance.now() - this.#receivedAt < milliseconds;
  }

  /** Ping the service now, unless a ping is pending. */
  prove(): void {
    if (this.#timer === undefined || this.#isPingPending) return;
    this.#isPingPending = true;
    this.ask();
    this.#schedule(PONG_TIMEOUT);
  }

  // The timer is not reset with each event: there may be hundreds per second.
  #schedule(pause: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#check(), pause);
  }

  #check(): void {
    if (this.#isPingPending) return this.lost();
    const left = PING_INTERVAL - (performance.now() - this.#receivedAt);
    if (left > 0) this.#schedule(left);
    else this.prove();
  }
}
