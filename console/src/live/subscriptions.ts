/** Subscriptions sent to the service: the filters of all subscribers, each once.
 *
 * A new filter is sent at once, so that data loaded afterwards is not older than the events. An unused filter is
 * removed after a pause, since the next page may use the same. Lists wait until scrolling stops before they subscribe,
 * which keeps the rate below the limit of the service.
 */
import type { LiveFilter } from "./events";

const UNSUBSCRIBE_DELAY = 150;

export class Subscriptions {
  /** Number of subscribers of each filter, by its key. */
  #filters = new Map<string, { filter: LiveFilter; count: number }>();
  /** Filters sent on this connection. */
  #sent = new Map<string, LiveFilter>();
  #isOpen = false;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly send: (frame: object) => void) {}

  add(filter: LiveFilter): void {
    const text = getKey(filter);
    const wanted = this.#filters.get(text) ?? { filter, count: 0 };
    wanted.count += 1;
    this.#filters.set(text, wanted);
    if (!this.#isOpen || this.#sent.has(text)) return;
    this.send({ subscribe: filter });
    this.#sent.set(text, filter);
  }

  remove(filter: LiveFilter): void {
    const text = getKey(filter);
    const wanted = this.#filters.get(text);
    if (!wanted) return;
    wanted.count -= 1;
    if (wanted.count > 0) return;
    this.#filters.delete(text);
    if (this.#isOpen) this.#timer ??= setTimeout(() => this.#unsubscribeUnused(), UNSUBSCRIBE_DELAY);
  }

  /** Subscribe to all filters on a new connection. With the id of the last event, missed events are replayed; all
   * filters get the same id, since a replay for one filter does not cover the others. */
  open(after: string | null): void {
    this.#isOpen = true;
    for (const [text, { filter }] of this.#filters) {
      this.send(after === null ? { subscribe: filter } : { subscribe: filter, lastEventId: after });
      this.#sent.set(text, filter);
    }
  }

  /** Forget the subscriptions of a closed connection. */
  close(): void {
    this.#isOpen = false;
    this.#sent.clear();
    clearTimeout(this.#timer);
    this.#timer = undefined;
  }

  #unsubscribeUnused(): void {
    this.#timer = undefined;
    for (const [text, filter] of this.#sent) {
      if (this.#filters.has(text)) continue;
      this.send({ unsubscribe: filter });
      this.#sent.delete(text);
    }
  }
}

/** Return the key of a filter. To the service its lists are sets: filters with the same values in another order are
 * equal, and removing one would remove both. */
function getKey(filter: LiveFilter): string {
  const lists = Object.entries<readonly string[]>({ ...filter });
  return JSON.stringify(lists.map(([name, values]) => [name, [...new Set(values)].sort()]).sort());
}
