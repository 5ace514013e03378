/** What time it is where the service is. The clock of a browser may be wrong by any amount, so it alone is compared with
 * times that the service tells. It is told once a second to all who show how long ago something was; a hidden tab needs
 * no time. */
import { tabStorage } from "./storage";

const EVERY = 1000;
const KEY = "meshfleet.clock";
/** Answers bear whole seconds, which may be those of a moment before. */
const COARSE = 3000;

class Clock {
  /** By how many milliseconds the service's clock is ahead of the browser's; null: it has not told its time yet. A page
   * that is loaded anew in its tab knows it from the beginning. */
  #ahead = kept();
  now = $state(this.read());

  constructor() {
    setInterval(() => this.#tell(), EVERY);
    document.addEventListener("visibilitychange", () => this.#tell());
  }

  /** The time at this very moment, in milliseconds since 1970. */
  read(): number {
    return Date.now() + (this.#ahead ?? 0);
  }

  /** As `fetch`, of the service: each of its answers says when it was given. */
  readonly fetch = async (input: RequestInfo | URL, init?: RequestInit): Promise<Response> => {
    const askedAt = Date.now();
    const answer = await fetch(input, init);
    const said = Date.parse(answer.headers.get("Date") ?? "");
    if (!Number.isNaN(said)) this.#learn(said - Date.now(), said + COARSE - askedAt);
    return answer;
  };

  /** It is never earlier there than an answer says, so the latest that one said is believed, and small differences are
   * none; unless a clock was set. So it may lag a little, and never runs ahead of what the service has told. */
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
