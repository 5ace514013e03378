/** What the user has not seen yet of the alarms: loaded at the start and after each change of an alarm. The service stores
 * what the user has seen, so that all browsers of a user agree. */
import { type Schemas, api, requireBody } from "../../api/client";
import { live } from "../../live/socket.svelte";

export type Unread = Schemas["UnreadAlarms"];
export type News = Schemas["AlarmNews"];

/** Milliseconds within which changes of alarms load the number once. */
const DELAY = 500;

class UnreadAlarms {
  value = $state.raw<Unread | null>(null);
  #request: AbortController | null = null;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Number of alarms with news; 0 while it is unknown. */
  get count(): number {
    return this.value?.count ?? 0;
  }

  /** Keep the number up to date until the returned function is called. `onAlarm` receives changed alarms. */
  watch(onAlarm: (alarm: Schemas["Alarm"]) => void): () => void {
    void this.#load();
    const unsubscribe = live.subscribe({
      filter: { Types: ["alarm"] },
      onEvent: (event) => {
        // An event contains the alarm as in REST.
        onAlarm(event.data as unknown as Schemas["Alarm"]);
        this.#timer ??= setTimeout(() => void this.#load(), DELAY);
      },
      onResync: () => void this.#load(),
    });
    return () => {
      unsubscribe();
      clearTimeout(this.#timer);
      this.#timer = undefined;
      this.#request?.abort();
      this.value = null;
    };
  }

  /** Load the newest events, and record that the user has seen them. */
  async open(signal: AbortSignal): Promise<readonly News[]> {
    const query = { MaxResults: MAX_NEWS };
    const { items } = requireBody(await api.GET("/api/v1/alarms/events", { params: { query }, signal }));
    const newest = items[0]?.number;
    if (newest !== undefined && this.count > 0) {
      this.value = requireBody(await api.PUT("/api/v1/alarms/seen", { body: { upTo: newest } }));
    }
    return items;
  }

  async #load(): Promise<void> {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#request?.abort();
    const request = new AbortController();
    this.#request = request;
    try {
      this.value = requireBody(await api.GET("/api/v1/attention", { signal: request.signal })).unread;
    } catch {
      // The last number stays. It is loaded again when an alarm changes, and after a reconnect.
    }
  }
}

/** Number of events in the panel. */
const MAX_NEWS = 20;

export const unread = new UnreadAlarms();

/** Return the title of the browser tab: the page, after the number of alarms that the user has not seen. */
export function formatTabTitle(title: string): string {
  return unread.count > 0 ? `(${unread.count}) ${title}` : title;
}
