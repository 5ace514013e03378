/** Puts a label on many devices, or takes it off: a few at a time, with news of how far it is. */
import { Problem, type Schemas, api, requireBody, describeError } from "../../api/client";
import type { DeviceQuery, Filter } from "../../filtering/filters";
import { en } from "../../text/en";

export type Deed = "add" | "remove";

export interface Outcome {
  readonly done: number;
  /** The devices for which it was not done. */
  readonly left: readonly string[];
  /** Why, if it is not done for all. */
  readonly problem: string | null;
}

/** More than that is not changed at once: nobody could say what happened. */
export const MOST = 10_000;
const PAGE = 1000;
/** So many get a label with one request: few enough to see it go on, and to let others write in between. */
const TOGETHER = 200;
const AT_ONCE = 4;

export class Labelling {
  isRunning = $state(false);
  /** Whether it is still looked up which devices are meant. */
  isGathering = $state(false);
  done = $state(0);
  total = $state(0);

  #control = new AbortController();
  #left = new Set<string>();
  #problem: string | null = null;

  /** Do it for these devices, or for all that match a filter. It never throws: the outcome tells what went wrong. */
  async run(deed: Deed, label: string, targets: readonly string[] | Filter): Promise<Outcome> {
    this.#control = new AbortController();
    this.#left = new Set();
    this.#problem = null;
    this.done = this.total = 0;
    this.isRunning = true;
    try {
      const ids = isList(targets) ? targets : await this.#gather(deed, label, targets);
      this.#left = new Set(ids);
      this.total = ids.length;
      if (deed === "add") await this.#add(label, ids);
      else await this.#each(ids, (id) => this.#detach(label, id));
    } catch (error) {
      this.#problem = this.#control.signal.aborted ? en.devices.bulk.stopped : describeError(error);
    } finally {
      this.isRunning = false;
      this.isGathering = false;
    }
    return { done: this.done, left: [...this.#left], problem: this.#problem };
  }

  /** What is done stays done. */
  stop(): void {
    this.#control.abort();
  }

  async #gather(deed: Deed, label: string, filter: Filter): Promise<readonly string[]> {
    this.isGathering = true;
    // A label is taken off those that have it.
    const having = new Set(filter.Label).add(label);
    const wanted = deed === "remove" ? { ...filter, Label: [...having] } : filter;
    const ids: string[] = [];
    let token: string | null = null;
    do {
      const query: DeviceQuery = { ...wanted, MaxResults: PAGE, ...(token === null ? {} : { NextToken: token }) };
      const page: Schemas["DevicePage"] = requireBody(
        await api.GET("/api/v1/devices", { params: { query }, signal: this.#control.signal }),
      );
      ids.push(...page.items.map((device) => device.id));
      token = page.nextToken;
      if (ids.length > MOST || (ids.length === MOST && token !== null)) {
        throw new Problem(0, "too-many", en.devices.bulk.tooMany(MOST));
      }
    } while (token !== null);
    this.isGathering = false;
    return ids;
  }

  async #add(label: string, ids: readonly string[]): Promise<void> {
    for (let start = 0; start < ids.length; start += TOGETHER) {
      const deviceIds = ids.slice(start, start + TOGETHER);
      try {
        await api.POST("/api/v1/labels", { body: { label, deviceIds }, signal: this.#control.signal });
        for (const id of deviceIds) this.#isDone(id);
      } catch (error) {
        if (!isMissing(error)) throw error;
        // One of them is not there any more: the others get it one by one.
        await this.#each(deviceIds, (id) => this.#attach(label, id));
      }
    }
  }

  async #attach(label: string, id: string): Promise<void> {
    try {
      await api.PUT("/api/v1/devices/{device_id}/labels/{label}", this.#named(label, id));
      this.#isDone(id);
    } catch (error) {
      if (!isMissing(error)) throw error;
      this.#problem ??= describeError(error);
    }
  }

  async #detach(label: string, id: string): Promise<void> {
    try {
      await api.DELETE("/api/v1/devices/{device_id}/labels/{label}", this.#named(label, id));
    } catch (error) {
      // Whoever does not have it needs nothing taken off.
      if (!isMissing(error)) throw error;
    }
    this.#isDone(id);
  }

  /** Some at once. The first failure that is not about one device alone ends it. */
  async #each(ids: readonly string[], act: (id: string) => Promise<void>): Promise<void> {
    const waiting = ids.values();
    let hasFailed = false;
    const work = async (): Promise<void> => {
      for (const id of waiting) {
        if (hasFailed) return;
        try {
          await act(id);
        } catch (error) {
          hasFailed = true;
          throw error;
        }
      }
    };
    const ends = await Promise.allSettled(Array.from({ length: AT_ONCE }, work));
    const failure = ends.find((end) => end.status === "rejected");
    if (failure) throw failure.reason;
  }

  #named(label: string, id: string) {
    return { params: { path: { device_id: id, label } }, signal: this.#control.signal };
  }

  #isDone(id: string): void {
    if (this.#left.delete(id)) this.done += 1;
  }
}

function isList(targets: readonly string[] | Filter): targets is readonly string[] {
  return Array.isArray(targets);
}

function isMissing(error: unknown): boolean {
  return error instanceof Problem && error.status === 404;
}
