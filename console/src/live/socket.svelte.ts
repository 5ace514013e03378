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
const MAX_DELAY = 15_000;
/** Shortest delay after the service closed the connection because it is busy. */
const BUSY_DELAY = 5000;
/** Milliseconds for the handshake; a new attempt may pass where this one was dropped. */
const HANDSHAKE_TIMEOUT = 8000;
/** Milliseconds after which an open connection counts as accepted: the service sends no confirmation. */
const ACCEPT_DELAY = 400;
/** Milliseconds after which the connection is stable: the backoff is reset, and all missed events have arrived. */
const STABLE_AFTER = 10_000;
/** Milliseconds until a hidden tab disconnects: users often switch tabs only briefly. */
const HIDE_DELAY = 10_000;
/** Milliseconds without events until the connection is shown as quiet. */
const QUIET_AFTER = 5000;

/** Milliseconds in which several resync events count as one: each subscription may send its own. */
const RESYNC_WINDOW = 100;

const UNAUTHENTICATED = 4401;
const BUSY_CODES: readonly number[] = [4429, 4503];

class Live {
  state = $state<LiveState>("off");
  /** Time of the next connection attempt, in milliseconds since 1970; null if none is scheduled. */
  retryAt = $state<number | null>(null);
  /** Whether a subscriber waits for events of devices and none has arrived for a while. */
  isQuiet = $state(false);

  /** Number of received pongs. */
  pongs = $state(0);

  /** Whether an event arrived on this connection. */
  #hasEvents = false;
  #socket: WebSocket | null = null;
  #token: string | null = null;
  #isPaused = false;
  #subscribers = new Set<Subscriber>();
  #subscriptions = new Subscriptions((frame) => this.#send(frame));
  #keepAlive = new KeepAlive(
    () => this.#send({ ping: "still there?" }),
    () => this.reconnect(),
  );
  /** Id of the last event. */
  #lastId: string | null = null;
  /** Id of the event after which this connection resumed, until all missed events have arrived. */
  #resumedAt: string | null = null;
  #wasConnected = false;
  #delay = FIRST_DELAY;
  #retryTimer: ReturnType<typeof setTimeout> | undefined;
  #handshakeTimer: ReturnType<typeof setTimeout> | undefined;
  #acceptTimer: ReturnType<typeof setTimeout> | undefined;
  #stableTimer: ReturnType<typeof setTimeout> | undefined;
  #hideTimer: ReturnType<typeof setTimeout> | undefined;
  #quietTimer: ReturnType<typeof setTimeout> | undefined;
  #resyncTimer: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    document.addEventListener("visibilitychange", () => this.#handleVisibility());
    addEventListener("online", () => this.retry());
    addEventListener("offline", () => this.reconnect());
  }

  /** Connect after sign-in. */
  start(): void {
    if (this.state !== "off") return;
    this.#connect();
    this.#handleVisibility();
  }

  /** Disconnect and reset the state. */
  stop(): void {
    this.#disconnect("off");
    clearTimeout(this.#hideTimer);
    this.#isPaused = false;
    this.#wasConnected = false;
    this.#lastId = null;
    this.#resumedAt = null;
    this.#delay = FIRST_DELAY;
  }

  /** Pause or resume the live values. */
  pause(paused: boolean): void {
    if (this.state === "off") return;
    this.#isPaused = paused;
    if (paused) this.#disconnect("paused");
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
    this.#scheduleRetry(0);
  }

  /** Check whether the connection is alive. */
  ping(): void {
    this.#keepAlive.prove();
  }

  /** Return whether a message arrived within the last milliseconds. */
  hasReceivedWithin(milliseconds: number): boolean {
    return this.state === "live" && this.#keepAlive.isWithin(milliseconds);
  }

  /** Send a renewed token, so that the connection does not end with the old one. */
  renewToken(token: string): void {
    this.#token = token;
    this.#send({ token });
  }

  /** Receive the events that match a filter, until the returned function is called. */
  subscribe(listener: Subscriber): () => void {
    this.#subscribers.add(listener);
    this.#subscriptions.add(listener.filter);
    untrack(() => this.#watchQuiet());
    return () => {
      if (!this.#subscribers.delete(listener)) return;
      this.#subscriptions.remove(listener.filter);
      untrack(() => this.#watchQuiet());
    };
  }

  #handleVisibility(): void {
    clearTimeout(this.#hideTimer);
    if (this.state === "off" || this.#isPaused) return;
    // A hidden tab needs no events; when it becomes visible, it resumes as after an interruption.
    if (document.hidden) this.#hideTimer = setTimeout(() => this.#disconnect("paused"), HIDE_DELAY);
    else if (this.state === "paused") this.#connect();
    else this.retry();
  }

  #connect(): void {
    clearTimeout(this.#retryTimer);
    this.retryAt = null;
    if (session.token === null) return void (this.state = "off");
    this.state = this.#wasConnected ? "reconnecting" : "connecting";
    const address = new URL(PATH, location.href);
    address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(address);
    this.#socket = socket;
    this.#handshakeTimer = setTimeout(() => this.#handleClose(), HANDSHAKE_TIMEOUT);
    socket.addEventListener("open", () => {
      if (this.#socket === socket) this.#handleOpen();
    });
    socket.addEventListener("message", (message: MessageEvent<string>) => {
      if (this.#socket === socket) this.#handleMessage(message.data);
    });
    socket.addEventListener("close", (end) => {
      if (this.#socket === socket) this.#handleClose(end.code);
    });
  }

  #handleOpen(): void {
    clearTimeout(this.#handshakeTimer);
    this.#token = session.token;
    this.#send({ token: this.#token });
    // After an interruption missed events come first; an unknown id makes all subscribers reload.
    const after = this.#wasConnected ? (this.#resumedAt ?? this.#lastId ?? "") : null;
    this.#resumedAt = after;
    this.#subscriptions.open(after);
    // Data that pages loaded before the first connection may have changed since.
    if (!this.#wasConnected) this.#resync();
    this.#wasConnected = true;
    this.#acceptTimer = setTimeout(() => this.#accept(), ACCEPT_DELAY);
    this.#stableTimer = setTimeout(() => {
      this.#delay = FIRST_DELAY;
      this.#resumedAt = null;
    }, STABLE_AFTER);
  }

  #accept(): void {
    clearTimeout(this.#acceptTimer);
    if (this.state === "live") return;
    this.state = "live";
    this.#hasEvents = false;
    this.#keepAlive.begin();
    this.#watchQuiet();
    runRetries();
  }

  #handleMessage(text: string): void {
    const event = JSON.parse(text) as LiveEvent | { error: unknown } | { pong: unknown };
    if ("error" in event) return; // the close code that follows is handled
    this.#accept();
    this.#keepAlive.heard();
    if ("pong" in event) return void (this.pongs += 1);
    this.#lastId = event.id;
    if (event.type === "resync") return void (this.#resyncTimer ??= setTimeout(() => this.#resync(), RESYNC_WINDOW));
    const renamed = parseDeviceName(event);
    if (renamed) deviceNames.updateIfLoaded(renamed.mac, renamed.name);
    this.#hasEvents = true;
    this.isQuiet = false;
    this.#notify((listener) => {
      if (matchesFilter(listener.filter, event)) listener.onEvent(event);
    });
  }

  #resync(): void {
    this.#resyncTimer = undefined;
    deviceNames.invalidate();
    this.#notify((listener) => listener.onResync());
  }

  /** An exception of one subscriber must not affect the others. */
  #notify(say: (listener: Subscriber) => void): void {
    for (const listener of [...this.#subscribers]) {
      try {
        say(listener);
      } catch (error) {
        reportError(error);
      }
    }
  }

  /** Restart the timer for `isQuiet`. Only subscriptions to devices and reports count: gateways may have no events for
   * days. */
  #watchQuiet(): void {
    clearTimeout(this.#quietTimer);
    this.isQuiet = false;
    if (this.state !== "live" || this.#hasEvents) return;
    const expectsEvents = [...this.#subscribers].some(({ filter }) => filter.Types.some((type) => type === "device" || type === "report"));
    if (expectsEvents) this.#quietTimer = setTimeout(() => (this.isQuiet = !this.#hasEvents), QUIET_AFTER);
  }

  /** Handle the end of a connection or of a failed handshake. */
  #handleClose(code?: number): void {
    this.#drop();
    if (session.token === null) return void (this.state = "off");
    // A token renewed in the meantime gets its own attempt.
    if (code === UNAUTHENTICATED && this.#token === session.token) return session.expire();
    if (code !== undefined && BUSY_CODES.includes(code)) this.#delay = Math.max(this.#delay, BUSY_DELAY);
    this.#scheduleRetry(this.#delay * (0.8 + Math.random() * 0.4));
    this.#delay = Math.min(this.#delay * 2, MAX_DELAY);
  }

  #scheduleRetry(pause: number): void {
    this.state = "reconnecting";
    this.retryAt = clock.read() + pause;
    this.#retryTimer = setTimeout(() => this.#connect(), pause);
  }

  #disconnect(state: LiveState): void {
    this.#drop();
    this.state = state;
    this.retryAt = null;
  }

  #drop(): void {
    for (const timer of [this.#retryTimer, this.#handshakeTimer, this.#acceptTimer, this.#stableTimer, this.#quietTimer]) clearTimeout(timer);
    this.#keepAlive.end();
    // A pending resync is repeated after the reconnect.
    if (this.#resyncTimer !== undefined) this.#lastId = this.#resumedAt = null;
    clearTimeout(this.#resyncTimer);
    this.#resyncTimer = undefined;
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
