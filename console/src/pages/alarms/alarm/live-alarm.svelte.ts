/** One alarm with its members and events. Live events carry the alarm; members and events are loaded again after each
 * change, as many rows as are shown. */
import { pickNewer } from "../../../alarms/alarm-events";
import type { Alarm } from "../../../alarms/alarm-styles";
import { type Schemas, api, requireBody } from "../../../api/client";
import { PagedList } from "../../../api/paged-list.svelte";
import { Resource } from "../../../api/resource.svelte";
import { startPolling } from "../../../live/polling";
import { live } from "../../../live/socket.svelte";

export type AlarmEvent = Schemas["AlarmEvent"];
export type AlarmMember = Schemas["AlarmMember"];

/** Milliseconds between two loads: the sentence of an alarm contains times, which change without an event. */
const RELOAD_INTERVAL = 15_000;
/** Milliseconds after a change until members and events are loaded: several changes may follow each other. */
const LIST_DELAY = 300;
/** Number of rows at first, and the largest page of the service. */
const FIRST_ROWS = 20;
const MAX_ROWS = 1000;

export class LiveAlarm {
  readonly alarm = new Resource<Alarm>();
  readonly events = new PagedList<AlarmEvent>();
  readonly members = new PagedList<AlarmMember>();

  #listTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly id: string) {}

  /** Load the alarm and keep it current until the returned function is called. */
  start(): () => void {
    const unsubscribe = live.subscribe({
      filter: { Types: ["alarm"] },
      onEvent: (event) => {
        if (event.data["id"] !== this.id) return;
        this.#show(event.data as unknown as Alarm);
        this.#listTimer ??= setTimeout(() => this.#loadLists(), LIST_DELAY);
      },
      onResync: () => void this.load(),
    });
    void this.load();
    const stopPolling = startPolling(async () => {
      if (this.alarm.value?.state !== "cleared") await this.alarm.load((signal) => this.#fetchAlarm(signal));
    }, RELOAD_INTERVAL);
    return () => {
      unsubscribe();
      stopPolling();
      clearTimeout(this.#listTimer);
      this.alarm.stop();
      this.events.stop();
      this.members.stop();
    };
  }

  async load(): Promise<void> {
    await this.alarm.load(
      (signal) => this.#fetchAlarm(signal),
      () => this.#loadLists(),
    );
  }

  /** Show the alarm of a response to an action, with what the action has added to the events. */
  update(alarm: Alarm): void {
    this.#show(alarm);
    this.#loadLists();
  }

  #show(alarm: Alarm): void {
    this.alarm.applyChange((current) => pickNewer(current, alarm));
  }

  async #fetchAlarm(signal: AbortSignal): Promise<Alarm> {
    const params = { path: { alarm_id: this.id } };
    return requireBody(await api.GET("/api/v1/alarms/{alarm_id}", { params, signal }));
  }

  #loadLists(): void {
    clearTimeout(this.#listTimer);
    this.#listTimer = undefined;
    const path = { alarm_id: this.id };
    const eventRows = countRows(this.events.items);
    void this.events.start(async (token, signal) => {
      const query = { MaxResults: eventRows, ...(token && { NextToken: token }) };
      return requireBody(await api.GET("/api/v1/alarms/{alarm_id}/events", { params: { path, query }, signal }));
    });
    const memberRows = countRows(this.members.items);
    void this.members.start(async (token, signal) => {
      const query = { MaxResults: memberRows, ...(token && { NextToken: token }) };
      return requireBody(await api.GET("/api/v1/alarms/{alarm_id}/members", { params: { path, query }, signal }));
    });
  }
}

function countRows(items: readonly unknown[]): number {
  return Math.min(MAX_ROWS, Math.max(FIRST_ROWS, items.length));
}
