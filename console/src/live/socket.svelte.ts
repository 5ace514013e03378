/** What happens, as it happens: one WebSocket for the whole tab, which comes back by itself.
 *
 * Pages say what they show and get a function that ends it. The service is asked for the union, each filter as
 * it is; after a break all of them resume, and where something was missed their `resync` is called: they read
 * anew what they show.
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
  /** Something was missed: read anew. */
  onResync(): void;
}

const PATH = "/api/v1/live";
const FIRST_DELAY = 500;
const LONGEST_DELAY = 15_000;
/** A service that has too much to do is left alone for longer. */
const BUSY_DELAY = 5000;
/** For so long a handshake may go unanswered: what swallowed it may let the next one through. */
const LONGEST_HANDSHAKE = 8000;
/** A connection that was not refused for so long is one: the service says no word when it lets us in. */
const ACCEPTED = 400;
/** A connection that lasted so long was no failure, and all that was missed has been told. */
const SOUND = 10_000;
/** For so long a hidden tab stays connected: many only look at another one for a moment. */
const HIDDEN = 10_000;
/** Until nothing being told is worth a word. */
const SILENCE = 5000;

/** Each subscription may learn for itself that something was missed. What comes within so long is one loss. */
const MOMENT = 100;

const NOT_SIGNED_IN = 4401;
const BUSY: readonly number[] = [4429, 4503];

class Live {
  state = $state<LiveState>("off");
  /** When the next try is made. */
  retryAt = $state<number | null>(null);
  /** Whether somebody waits for news of devices, and none has come for a while. */
  isQuiet = $state(false);

  /** How often the service has answered whether it is still there. */
  pongs = $state(0);

  /** Whether any event came since the connection is there. */
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
  /** The last event that came. */
  #lastId: string | null = null;
  /** The one with which this connection began, until all that was missed since has surely been told. */
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

  /** Connect, when somebody is signed in. */
  start(): void {
    if (this.state !== "off") return;
    this.#connect();
    this.#look();
  }

  /** Hear nothing any more. */
  stop(): void {
    this.#leave("off");
    clearTimeout(this.#hiding);
    this.#isHeld = false;
    this.#wasThere = false;
    this.#lastId = null;
    this.#resumedAt = null;
    this.#delay = FIRST_DELAY;
  }

  /** Freeze what is shown, or let it go on. */
  pause(paused: boolean): void {
    if (this.state === "off") return;
    this.#isHeld = paused;
    if (paused) this.#leave("paused");
    else if (this.state === "paused") this.#connect();
  }

  /** Wait no longer, be it for the next try or for what came of the last one. */
  retry(): void {
    if (this.state !== "reconnecting" || this.#socket?.readyState === WebSocket.OPEN) return;
    this.#drop();
    this.#connect();
  }

  /** Somebody has reason to think that this connection is none any more: make another. */
  reconnect(): void {
    if (this.state !== "live") return;
    this.#drop();
    this.#retry(0);
  }

  /** Somebody wonders whether this connection still is one: find out. */
  ping(): void {
    this.#pulse.prove();
  }

  /** Whether anything came within the last so many milliseconds. */
  hasReceivedWithin(milliseconds: number): boolean {
    return this.state === "live" && this.#pulse.isWithin(milliseconds);
  }

  /** A new token, so that the connection does not end with the old one. */
  renewToken(token: string): void {
    this.#token = token;
    this.#send({ token });
  }

  /** Hear what fits a filter, until the returned function is called. */
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
    // Nobody sees a hidden tab; when it is seen again, it comes back as after any break.
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
    // After a break what was missed comes first; an id that nobody knows has everybody read anew.
    const after = this.#wasThere ? (this.#resumedAt ?? this.#lastId ?? "") : null;
    this.#resumedAt = after;
    this.#subscriptions.open(after);
    // What pages read before the first connection was there may have changed until it was.
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
    if ("error" in event) return; // the close that follows says the rest
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

  /** What one listener makes a mistake in is no reason for the others to miss it. */
  #tell(say: (listener: Subscriber) => void): void {
    for (const listener of [...this.#listeners]) {
      try {
        say(listener);
      } catch (error) {
        reportError(error);
      }
    }
  }

  /** Silence is news where somebody waits for devices; gateways alone may have nothing to say for days. */
  #awaitNews(): void {
    clearTimeout(this.#waiting);
    this.isQuiet = false;
    if (this.state !== "live" || this.#hasNews) return;
    const isAwaited = [...this.#listeners].some(({ filter }) => filter.Types.some((type) => type === "device" || type === "report"));
    if (isAwaited) this.#waiting = setTimeout(() => (this.isQuiet = !this.#hasNews), SILENCE);
  }

  /** It is over, or never began. */
  #closed(code?: number): void {
    this.#drop();
    if (session.token === null) return void (this.state = "off");
    // A token that was renewed meanwhile gets a chance of its own.
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
    // Who has not been told yet that something was missed is told when we are back.
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
