/** A request in progress. The service responds at once with the chosen gateway, and the result is polled; if the user
 * leaves, it is in the history. */
import { type Schemas, Problem, api, requireBody, describeError } from "../api/client";
import { createIdempotencyKey } from "../api/idempotency-key";
import { clock } from "../clock.svelte";

export type RequestRecord = Schemas["RequestRecord"];

/** Milliseconds between two polls: most responses arrive at once, others take minutes. */
const POLL_DELAYS = [0, 60, 120, 250, 500] as const;
/** Milliseconds before a request is sent again after no response. */
const RESEND_DELAYS = [250, 1000, 2000] as const;
/** Milliseconds to poll after the timeout of the request while polls fail: its end is recorded a little later. */
const POLL_GRACE = 3000;

export class SentRequest {
  /** Record of the service, once the request was accepted. */
  record = $state.raw<RequestRecord | null>(null);
  /** Why the request was not sent, or can no longer be followed. */
  problem = $state.raw<Problem | null>(null);
  /** Whether the result is awaited. */
  isWaiting = $state(false);
  /** Whether the user stopped waiting. */
  isAbandoned = $state(false);

  readonly startedAt = clock.read();
  /** Key that prevents a second execution when the request is sent again. */
  readonly #key = createIdempotencyKey();
  #abort = new AbortController();

  constructor(
    readonly device: string,
    readonly body: Schemas["NewRequest"],
  ) {}

  /** Send the request and wait for its result; null if it is unknown or nothing was sent. */
  async run(): Promise<RequestRecord | null> {
    this.isWaiting = true;
    try {
      const id = await this.#sendWithRetries();
      const end = performance.now() + this.body.timeoutMs + POLL_GRACE;
      for (let attempt = 0; ; attempt++) {
        await pause(POLL_DELAYS[Math.min(attempt, POLL_DELAYS.length - 1)] ?? 0);
        const record = await this.#poll(id, performance.now() < end);
        if (this.#abort.signal.aborted) return null;
        if (record === null) continue;
        this.record = record;
        if (record.state !== "PENDING") return record;
      }
    } catch (error) {
      if (!this.#abort.signal.aborted) this.problem = error instanceof Problem ? error : new Problem(0, "unexpected", describeError(error));
      return null;
    } finally {
      this.isWaiting = false;
    }
  }

  /** Stop waiting. The request itself is not canceled. */
  stopWaiting(): void {
    if (!this.isWaiting) return;
    this.isAbandoned = true;
    this.isWaiting = false;
    this.#abort.abort();
  }

  /** Send the request, again if no response arrives. Return its id. */
  async #sendWithRetries(): Promise<string> {
    for (const wait of RESEND_DELAYS) {
      try {
        return await this.#send();
      } catch (error) {
        if (!isLost(error)) throw error;
        await pause(wait);
        // Nothing is sent again after the user stopped waiting.
        if (this.#abort.signal.aborted) throw error;
      }
    }
    return await this.#send();
  }

  async #send(): Promise<string> {
    const header = { Prefer: "respond-async", "Idempotency-Key": this.#key };
    const params = { path: { device_id: this.device }, header };
    return requireBody(await api.POST("/api/v1/devices/{device_id}/requests", { params, body: this.body })).id;
  }

  /** Poll the record; null if the poll failed and there is time for another. */
  async #poll(id: string, hasTime: boolean): Promise<RequestRecord | null> {
    const params = { path: { request_id: id } };
    try {
      return requireBody(await api.GET("/api/v1/requests/{request_id}", { params, signal: this.#abort.signal }));
    } catch (error) {
      if (hasTime && (isLost(error) || isBusy(error))) return null;
      throw error;
    }
  }
}

/** Return whether no response arrived: the request may have been received. */
function isLost(error: unknown): boolean {
  return error instanceof Problem && error.status === 0;
}

/** Return whether the service could not answer at the moment. */
function isBusy(error: unknown): boolean {
  return error instanceof Problem && (error.status === 429 || error.status >= 500);
}

function pause(time: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, time));
}
