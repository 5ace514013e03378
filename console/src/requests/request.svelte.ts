/** One request on its way. The service is asked not to wait: so it tells at once through which gateway it goes, and
 * whoever leaves finds the outcome in the history. */
import { type Schemas, Problem, api, requireBody, describeError } from "../api/client";
import { createIdempotencyKey } from "../api/idempotency-key";
import { clock } from "../clock.svelte";

export type RequestRecord = Schemas["RequestRecord"];

/** Milliseconds between two looks: most answers are there at once, others may take minutes. */
const LOOKS = [0, 60, 120, 250, 500] as const;
/** Milliseconds before it is sent once more, when nobody knows whether it arrived. */
const RESENDS = [250, 1000, 2000] as const;
/** How much longer than its own time it is looked for while looks are lost: its end is written down a moment later. */
const GRACE = 3000;

export class SentRequest {
  /** What the service has written down of it, once it is on its way. */
  record = $state.raw<RequestRecord | null>(null);
  /** Why it was not sent, or is not heard of any more. */
  problem = $state.raw<Problem | null>(null);
  /** Whether somebody waits for it. */
  isWaiting = $state(false);
  /** Whether who waited went away. */
  isAbandoned = $state(false);

  readonly startedAt = clock.read();
  /** With a key of its own nothing is carried out twice, however often it is sent. */
  readonly #key = createIdempotencyKey();
  #leaving = new AbortController();

  constructor(
    readonly device: string,
    readonly body: Schemas["NewRequest"],
  ) {}

  /** Send it, and wait for what comes of it; null: nobody knows, or nothing was sent. */
  async run(): Promise<RequestRecord | null> {
    this.isWaiting = true;
    try {
      const id = await this.#sendSurely();
      const end = performance.now() + this.body.timeoutMs + GRACE;
      for (let look = 0; ; look++) {
        await pause(LOOKS[Math.min(look, LOOKS.length - 1)] ?? 0);
        const record = await this.#look(id, performance.now() < end);
        if (this.#leaving.signal.aborted) return null;
        if (record === null) continue;
        this.record = record;
        if (record.state !== "PENDING") return record;
      }
    } catch (error) {
      if (!this.#leaving.signal.aborted) this.problem = error instanceof Problem ? error : new Problem(0, "unexpected", describeError(error));
      return null;
    } finally {
      this.isWaiting = false;
    }
  }

  /** Wait no longer. What was sent is not called back. */
  stopWaiting(): void {
    if (!this.isWaiting) return;
    this.isAbandoned = true;
    this.isWaiting = false;
    this.#leaving.abort();
  }

  /** Send it until it is known to have arrived, or not. */
  async #sendSurely(): Promise<string> {
    for (const wait of RESENDS) {
      try {
        return await this.#send();
      } catch (error) {
        if (!isLost(error)) throw error;
        await pause(wait);
        // Whoever left wants nothing more to be sent.
        if (this.#leaving.signal.aborted) throw error;
      }
    }
    return await this.#send();
  }

  async #send(): Promise<string> {
    const header = { Prefer: "respond-async", "Idempotency-Key": this.#key };
    const params = { path: { device_id: this.device }, header };
    return requireBody(await api.POST("/api/v1/devices/{device_id}/requests", { params, body: this.body })).id;
  }

  /** What became of it; null: this look was lost, and there is time for another. */
  async #look(id: string, hasTime: boolean): Promise<RequestRecord | null> {
    const params = { path: { request_id: id } };
    try {
      return requireBody(await api.GET("/api/v1/requests/{request_id}", { params, signal: this.#leaving.signal }));
    } catch (error) {
      if (hasTime && (isLost(error) || isBusy(error))) return null;
      throw error;
    }
  }
}

/** Whether no answer came: nobody knows whether the question arrived. */
function isLost(error: unknown): boolean {
  return error instanceof Problem && error.status === 0;
}

/** Whether the service could not answer just now. */
function isBusy(error: unknown): boolean {
  return error instanceof Problem && (error.status === 429 || error.status >= 500);
}

function pause(time: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, time));
}
