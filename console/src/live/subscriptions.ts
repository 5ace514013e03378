/** What the service is asked to tell: the filters of all listeners, each once.
 *
 * What somebody wants is said at once: what they read after that is not older than what they are told. What nobody wants
 * any more is said a moment later, as the next page may want the same. Lists wait until scrolling has come to rest
 * before they want anything, so nobody says more than the service listens to.
 */
import type { LiveFilter } from "./events";

const PAUSE = 150;

export class Subscriptions {
  /** How many listeners want each filter, by its text. */
  #wanted = new Map<string, { filter: LiveFilter; count: number }>();
  /** What this connection was asked for. */
  #asked = new Map<string, LiveFilter>();
  #isOpen = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly send: (frame: object) => void) {}

  add(filter: LiveFilter): void {
    const text = textOf(filter);
    const wanted = this.#wanted.get(text) ?? { filter, count: 0 };
    wanted.count += 1;
    this.#wanted.set(text, wanted);
    if (!this.#isOpen || this.#asked.has(text)) return;
    this.send({ subscribe: filter });
    this.#asked.set(text, filter);
  }

  remove(filter: LiveFilter): void {
    const text = textOf(filter);
    const wanted = this.#wanted.get(text);
    if (!wanted) return;
    wanted.count -= 1;
    if (wanted.count > 0) return;
    this.#wanted.delete(text);
    if (this.#isOpen) this.#timer ??= setTimeout(() => this.#tidy(), PAUSE);
  }

  /** A connection is there: ask for everything. With the id of the last event that came before, what was missed is
   * told; all are given the same one, since what the first is told is not what the next has missed. */
  open(after: string | null): void {
    this.#isOpen = true;
    for (const [text, { filter }] of this.#wanted) {
      this.send(after === null ? { subscribe: filter } : { subscribe: filter, lastEventId: after });
      this.#asked.set(text, filter);
    }
  }

  /** The connection is gone, and all that was asked with it. */
  close(): void {
    this.#isOpen = false;
    this.#asked.clear();
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #tidy(): void {
    this.#timer = undefined;
    for (const [text, filter] of this.#asked) {
      if (this.#wanted.has(text)) continue;
      this.send({ unsubscribe: filter });
      this.#asked.delete(text);
    }
  }
}

/** What tells filters apart. To the service their lists are sets: one that names the same things in another order is the
 * same one, and whoever ended it would end both. */
function textOf(filter: LiveFilter): string {
  const lists = Object.entries<readonly string[]>({ ...filter });
  return JSON.stringify(lists.map(([name, values]) => [name, [...new Set(values)].sort()]).sort());
}
