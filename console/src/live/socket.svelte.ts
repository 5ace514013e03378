/** Live events: one WebSocket for the whole tab, with automatic reconnect.
 *
 * Pages subscribe with a filter and get a function that unsubscribes. Each filter is sent to the service once. After
 * an interruption all subscriptions resume; where events were missed, `onResync` is called and the page reloads its
 * data.
 */
import { untrack } from "svelte";

import { deviceNames } from "../api/device-names.svelte";
import { runRetries } from "../api/reconnect-retries";
import { session } from "../api/session.svelte";
import { clock } from "../clock.svelte";
import { type LiveFilter, type LiveEvent, matchesFilter, parseDeviceName } from "./events";
import { KeepAlive } from "./keep-alive";
import { Subscriptions } from "./subscriptions";

export type { LiveFilter, LiveEvent } from "./events";

export type LiveState = "connecting" | "live" | "reconnecting" | "paused" | "off";

export interface Subscriber {
  readonly filter: LiveFilter;
  onEvent(event: LiveEvent): void;
  /** Handle missed events: reload the data. */
  onResync(): void;
}

const PATH = "/api/v1/live";
const FIRST_DELAY = 500;
const LONGEST_DELAY = 15_000;
/** Shortest delay after the service closed the connection because it is busy. */
const BUSY_DELAY = 5000;
/** Milliseconds for the handshake; a new attempt may pass where this one was dropped. */
const LONGEST_HANDSHAKE = 8000;
/** Milliseconds after which an open connection counts as accepted: the service sends no confirmation. */
const ACCEPTED = 400;
/** Milliseconds after which the connection is stable: the backoff is reset, and all missed events have arrived. */
const SOUND = 10_000;
/** Milliseconds until a hidden tab disconnects: users often switch tabs only briefly. */
const HIDDEN = 10_000;
/** Milliseconds without events until the connection is shown as quiet. */
const SILENCE = 5000;

/** Milliseconds in which several resync events count as one: each subscription may send its own. */
const MOMENT = 100;

const NOT_SIGNED_IN = 4401;
const BUSY: readonly number[] = [4429, 4503];

class Live {
  state = $state<LiveState>("off");
  /** Time of the next connection attempt, in milliseconds since 1970; null if none is scheduled. */
  retryAt = $state<number | null>(null);
  /** Whether a subscriber waits for events of devices and none has arrived for a while. */
  isQuiet = $state(false);

  /** Number of received pongs. */
  pongs = $state(0);

  /** Whether an event arrived on this connection. */
  #hasNews = false;
  #socket: WebSocket | null = null;
  #token: string | null = null;
  #isHeld = false;
  #listeners = new Set<Subscriber>();
  #subscriptions = new Subscriptions((frame) => this.#send(frame));
  #pulse = new KeepAlive(
    () => this.#send({ ping: "still there?" }),
    () => this.reconnect(),
  );
  /** Id of the last event. */
  #lastId: string | null = null;
  /** Id of the event after which this connection resumed, until all missed events have arrived. */
  #resumedAt: string | null = null;
  #wasThere = false;
  #delay = FIRST_DELAY;
  #retrying: ReturnType<typeof setTimeout> | undefined;
  #opening: ReturnType<typeof setTimeout> | undefined;
  #accepting: ReturnType<typeof setTimeout> | undefined;
  #proving: ReturnType<typeof setTimeout> | undefined;
  #hiding: ReturnType<typeof setTimeout> | undefined;
  #waiting: ReturnType<typeof setTimeout> | undefined;
  #missing: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    document.addEventListener("visibilitychange", () => this.#look());
    addEventListener("online", () => this.retry());
    addEventListener("offline", () => this.reconnect());
  }

  /** Connect after sign-in. */
  start(): void {
    if (this.state !== "off") return;
    this.#connect();
    this.#look();
  }

  /** Disconnect and reset the state. */
  stop(): void {
    this.#leave("off");
    clearTimeout(this.#hiding);
    this.#isHeld = false;
    this.#wasThere = false;
    this.#lastId = null;
    this.#resumedAt = null;
    this.#delay = FIRST_DELAY;
  }

  /** Pause or resume the live values. */
  pause(paused: boolean): void {
    if (this.state === "off") return;
    this.#isHeld = paused;
    if (paused) this.#leave("paused");
    else if (this.state === "paused") this.#connect();
  }

  /** Connect now instead of waiting for the next attempt or for a pending handshake. */
  retry(): void {
    if (this.state !== "reconnecting" || this.#socket?.readyState === WebSocket.OPEN) return;
    this.#drop();
    this.#connect();
  }

  /** Replace a connection that is presumably dead. */
  reconnect(): void {
    if (this.state !== "live") return;
    this.#drop();
    this.#retry(0);
  }

  /** Check whether the connection is alive. */
  ping(): void {
    this.#pulse.prove();
  }

  /** Return whether a message arrived within the last milliseconds. */
  hasReceivedWithin(milliseconds: number): boolean {
    return this.state === "live" && this.#pulse.isWithin(milliseconds);
  }

  /** Send a renewed token, so that the connection does not end with the old one. */
  renewToken(token: string): void {
    this.#token = token;
    this.#send({ token });
  }

  /** Receive the events that match a filter, until the returned function is called. */
  subscribe(listener: Subscriber): () => void {
    this.#listeners.add(listener);
    this.#subscriptions.add(listener.filter);
    untrack(() => this.#awaitNews());
    return () => {
      if (!this.#listeners.delete(listener)) return;
      this.#subscriptions.remove(listener.filter);
      untrack(() => this.#awaitNews());
    };
  }

  #look(): void {
    clearTimeout(this.#hiding);
    if (this.state === "off" || this.#isHeld) return;
    // A hidden tab needs no events; when it becomes visible, it resumes as after an interruption.
    if (document.hidden) this.#hiding = setTimeout(() => this.#leave("paused"), HIDDEN);
    else if (this.state === "paused") this.#connect();
    else this.retry();
  }

  #connect(): void {
    clearTimeout(this.#retrying);
    this.retryAt = null;
    if (session.token === null) return void (this.state = "off");
    this.state = this.#wasThere ? "reconnecting" : "connecting";
    const address = new URL(PATH, location.href);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(address);
    this.#socket = socket;
    this.#opening = setTimeout(() => this.#closed(), LONGEST_HANDSHAKE);
    socket.addEventListener("open", () => {
      if (this.#socket === socket) this.#greet();
    });
    socket.addEventListener("message", (message: MessageEvent<string>) => {
      if (this.#socket === socket) this.#take(message.data);
    });
    socket.addEventListener("close", (end) => {
      if (this.#socket === socket) this.#closed(end.code);
    });
  }

  #greet(): void {
    clearTimeout(this.#opening);
    this.#token = session.token;
    this.#send({ token: this.#token });
    // After an interruption missed events come first; an unknown id makes all subscribers reload.
    const after = this.#wasThere ? (this.#resumedAt ?? this.#lastId ?? "") : null;
    this.#resumedAt = after;
    this.#subscriptions.open(after);
    // Data that pages loaded before the first connection may have changed since.
    if (!this.#wasThere) this.#resync();
    this.#wasThere = true;
    this.#accepting = setTimeout(() => this.#accept(), ACCEPTED);
    this.#proving = setTimeout(() => {
      this.#delay = FIRST_DELAY;
      this.#resumedAt = null;
    }, SOUND);
  }

  #accept(): void {
    clearTimeout(this.#accepting);
    if (this.state === "live") return;
    this.state = "live";
    this.#hasNews = false;
    this.#pulse.begin();
    this.#awaitNews();
    runRetries();
  }

  #take(text: string): void {
    const event = JSON.parse(text) as LiveEvent | { error: unknown } | { pong: unknown };
    if ("error" in event) return; // the close code that follows is handled
    this.#accept();
    this.#pulse.heard();
    if ("pong" in event) return void (this.pongs += 1);
    this.#lastId = event.id;
    if (event.type === "resync") return void (this.#missing ??= setTimeout(() => this.#resync(), MOMENT));
    const named = parseDeviceName(event);
    if (named) deviceNames.updateIfLoaded(named.mac, named.name);
    this.#hasNews = true;
    this.isQuiet = false;
    this.#tell((listener) => {
      if (matchesFilter(listener.filter, event)) listener.onEvent(event);
    });
  }

  #resync(): void {
    this.#missing = undefined;
    deviceNames.invalidate();
    this.#tell((listener) => listener.onResync());
  }

  /** An exception of one subscriber must not affect the others. */
  #tell(say: (listener: Subscriber) => void): void {
    for (const listener of [...this.#listeners]) {
      try {
        say(listener);
      } catch (error) {
        reportError(error);
      }
    }
  }

  /** Restart the timer for `isQuiet`. Only subscriptions to devices and reports count: gateways may have no events for
   * days. */
  #awaitNews(): void {
    clearTimeout(this.#waiting);
    this.isQuiet = false;
    if (this.state !== "live" || this.#hasNews) return;
    const isAwaited = [...this.#listeners].some(({ filter }) => filter.Types.some((type) => type === "device" || type === "report"));
    if (isAwaited) this.#waiting = setTimeout(() => (this.isQuiet = !this.#hasNews), SILENCE);
  }

  /** Handle the end of a connection or of a failed handshake. */
  #closed(code?: number): void {
    this.#drop();
    if (session.token === null) return void (this.state = "off");
    // A token renewed in the meantime gets its own attempt.
    if (code === NOT_SIGNED_IN && this.#token === session.token) return session.expire();
    if (code !== undefined && BUSY.includes(code)) this.#delay = Math.max(this.#delay, BUSY_DELAY);
    this.#retry(this.#delay * (0.8 + Math.random() * 0.4));
    this.#delay = Math.min(this.#delay * 2, LONGEST_DELAY);
  }

  #retry(pause: number): void {
    this.state = "reconnecting";
    this.retryAt = clock.read() + pause;
    this.#retrying = setTimeout(() => this.#connect(), pause);
  }

  #leave(state: LiveState): void {
    this.#drop();
    this.state = state;
    this.retryAt = null;
  }

  #drop(): void {
    for (const timer of [this.#retrying, this.#opening, this.#accepting, this.#proving, this.#waiting]) clearTimeout(timer);
    this.#pulse.end();
    // A pending resync is repeated after the reconnect.
    if (this.#missing !== undefined) this.#lastId = this.#resumedAt = null;
    clearTimeout(this.#missing);
    this.#missing = undefined;
    const socket = this.#socket;
    this.#socket = null;
    this.isQuiet = false;
    this.#subscriptions.close();
    socket?.close();
  }

  #send(frame: object): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(frame));
  }
}

export const live = new Live();
