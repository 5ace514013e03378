/** Clock of the service. The clock of a browser may be wrong by any amount, so only this one is compared with times of
 * the service. It ticks once per second for relative times, and stops in hidden tabs. */
import { tabStorage } from "./storage";

const EVERY = 1000;
const KEY = "meshfleet.clock";
/** Milliseconds by which the Date header of a response may lag: it has whole seconds, slightly old. */
const COARSE = 3000;

class Clock {
  /** Milliseconds by which the clock of the service is ahead of the browser; null until the first response. Kept in the
   * tab, so that a reload knows it at once. */
  #ahead = kept();
  now = $state(this.read());

  constructor() {
    setInterval(() => this.#tell(), EVERY);
    document.addEventListener("visibilitychange", () => this.#tell());
  }

  /** Return the current time of the service in milliseconds since 1970. */
  read(): number {
    return Date.now() + (this.#ahead ?? 0);
  }

  /** Call `fetch` and set the clock from the Date header of the response. */
  readonly fetch = async (input: RequestInfo | URL, init?: RequestInit): Promise<Response> => {
    const askedAt = Date.now();
    const answer = await fetch(input, init);
    const said = Date.parse(answer.headers.get("Date") ?? "");
    if (!Number.isNaN(said)) this.#learn(said - Date.now(), said + COARSE - askedAt);
    return answer;
  };

  /** Correct the offset if it is out of bounds. The service is never earlier than its response says, so the clock may
   * lag a little but never runs ahead, unless a clock was set. */
  #learn(least: number, most: number): void {
    if (this.#ahead !== null && this.#ahead >= least && this.#ahead <= most) return;
    this.#ahead = least;
    tabStorage.write(KEY, String(least));
    this.#tell();
  }

  #tell(): void {
    if (!document.hidden) this.now = this.read();
  }
}

function kept(): number | null {
  const ahead = Number.parseInt(tabStorage.read(KEY) ?? "", 10);
  return Number.isNaN(ahead) ? null : ahead;
}

export const clock = new Clock();
