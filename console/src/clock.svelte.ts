/** Clock of the service. The clock of a browser may be wrong by any amount, so only this one is compared with times of
 * the service. It ticks once per second for relative times, and stops in hidden tabs. */
import { tabStorage } from "./storage";

const TICK = 1000;
const STORAGE_KEY = "meshfleet.clock";
/** Milliseconds by which the Date header of a response may lag: it has whole seconds, slightly old. */
const DATE_PRECISION = 3000;

class Clock {
  /** Milliseconds by which the clock of the service is ahead of the browser; null until the first response. Kept in the
   * tab, so that a reload knows it at once. */
  #offset = readStoredOffset();
  now = $state(this.read());

  constructor() {
    setInterval(() => this.#tick(), TICK);
    document.addEventListener("visibilitychange", () => this.#tick());
  }

  /** Return the current time of the service in milliseconds since 1970. */
  read(): number {
    return Date.now() + (this.#offset ?? 0);
  }

  /** Call `fetch` and set the clock from the Date header of the response. */
  readonly fetch = async (input: RequestInfo | URL, init?: RequestInit): Promise<Response> => {
    const requestedAt = Date.now();
    const response = await fetch(input, init);
    const date = Date.parse(response.headers.get("Date") ?? "");
    if (!Number.isNaN(date)) this.#adjust(date - Date.now(), date + DATE_PRECISION - requestedAt);
    return response;
  };

  /** Correct the offset if it is out of bounds. The service is never earlier than its response says, so the clock may
   * lag a little but never runs ahead, unless a clock was set. */
  #adjust(least: number, most: number): void {
    if (this.#offset !== null && this.#offset >= least && this.#offset <= most) return;
    this.#offset = least;
    tabStorage.write(STORAGE_KEY, String(least));
    this.#tick();
  }

  #tick(): void {
    if (!document.hidden) this.now = this.read();
  }
}

function readStoredOffset(): number | null {
  const ahead = Number.parseInt(tabStorage.read(STORAGE_KEY) ?? "", 10);
  return Number.isNaN(ahead) ? null : ahead;
}

export const clock = new Clock();
