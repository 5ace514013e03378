/** Adding a label to many devices, or removing it: a few at a time, with progress. */
import { Problem, type Schemas, api, requireBody, describeError } from "../../api/client";
import type { DeviceQuery, Filter } from "../../filtering/filters";
import { en } from "../../text/en";

export type LabelAction = "add" | "remove";

export interface Outcome {
  readonly done: number;
  /** Ids of the devices that were not changed. */
  readonly left: readonly string[];
  /** Error text; null if all devices were changed. */
  readonly problem: string | null;
}

/** Maximum number of devices in one run: the result of a larger one would be hard to follow. */
export const MAX_DEVICES = 10_000;
const PAGE_SIZE = 1000;
/** Devices per request: few enough to show progress, and to let other writes in between. */
const BATCH_SIZE = 200;
/** Concurrent requests for single devices. */
const CONCURRENCY = 4;

/** One run over many devices, with its progress. */
export class BulkLabeling {
  isRunning = $state(false);
  /** Whether the ids of the matching devices are being loaded. */
  isLoadingIds = $state(false);
  done = $state(0);
  total = $state(0);

  #control = new AbortController();
  #left = new Set<string>();
  #problem: string | null = null;

  /** Change the label of these devices, or of all that match a filter. Never throws: the outcome holds the error. */
  async run(action: LabelAction, label: string, targets: readonly string[] | Filter): Promise<Outcome> {
    this.#control = new AbortController();
    this.#left = new Set();
    this.#problem = null;
    this.done = this.total = 0;
    this.isRunning = true;
    try {
      const ids = isList(targets) ? targets : await this.#loadIds(action, label, targets);
      this.#left = new Set(ids);
      this.total = ids.length;
      if (action === "add") await this.#add(label, ids);
      else await this.#forEach(ids, (id) => this.#detach(label, id));
    } catch (error) {
      this.#problem = this.#control.signal.aborted ? en.devices.bulk.stopped : describeError(error);
    } finally {
      this.isRunning = false;
      this.isLoadingIds = false;
    }
    return { done: this.done, left: [...this.#left], problem: this.#problem };
  }

  /** Stop the run. Changes made so far remain. */
  stop(): void {
    this.#control.abort();
  }

  async #loadIds(action: LabelAction, label: string, filter: Filter): Promise<readonly string[]> {
    this.isLoadingIds = true;
    // Only devices that have the label need a change.
    const labels = new Set(filter.Label).add(label);
    const matching = action === "remove" ? { ...filter, Label: [...labels] } : filter;
    const ids: string[] = [];
    let token: string | null = null;
    do {
      const query: DeviceQuery = { ...matching, MaxResults: PAGE_SIZE, ...(token === null ? {} : { NextToken: token }) };
      const page: Schemas["DevicePage"] = requireBody(
        await api.GET("/api/v1/devices", { params: { query }, signal: this.#control.signal }),
      );
      ids.push(...page.items.map((device) => device.id));
      token = page.nextToken;
      if (ids.length > MAX_DEVICES || (ids.length === MAX_DEVICES && token !== null)) {
        throw new Problem(0, "too-many", en.devices.bulk.tooMany(MAX_DEVICES));
      }
    } while (token !== null);
    this.isLoadingIds = false;
    return ids;
  }

  async #add(label: string, ids: readonly string[]): Promise<void> {
    for (let start = 0; start < ids.length; start += BATCH_SIZE) {
      const deviceIds = ids.slice(start, start + BATCH_SIZE);
      try {
        await api.POST("/api/v1/labels", { body: { label, deviceIds }, signal: this.#control.signal });
        for (const id of deviceIds) this.#markDone(id);
      } catch (error) {
        if (!isMissing(error)) throw error;
        // A device of this batch was deleted: add the label to the others one by one.
        await this.#forEach(deviceIds, (id) => this.#attach(label, id));
      }
    }
  }

  async #attach(label: string, id: string): Promise<void> {
    try {
      await api.PUT("/api/v1/devices/{device_id}/labels/{label}", this.#buildOptions(label, id));
      this.#markDone(id);
    } catch (error) {
      if (!isMissing(error)) throw error;
      this.#problem ??= describeError(error);
    }
  }

  async #detach(label: string, id: string): Promise<void> {
    try {
      await api.DELETE("/api/v1/devices/{device_id}/labels/{label}", this.#buildOptions(label, id));
    } catch (error) {
      // The device does not have the label, so the goal is reached.
      if (!isMissing(error)) throw error;
    }
    this.#markDone(id);
  }

  /** Run an action for each id, several concurrently. The first error ends it, unless the action handles it. */
  async #forEach(ids: readonly string[], action: (id: string) => Promise<void>): Promise<void> {
    const waiting = ids.values();
    let hasFailed = false;
    const work = async (): Promise<void> => {
      for (const id of waiting) {
        if (hasFailed) return;
        try {
          await action(id);
        } catch (error) {
          hasFailed = true;
          throw error;
        }
      }
    };
    const results = await Promise.allSettled(Array.from({ length: CONCURRENCY }, work));
    const failure = results.find((result) => result.status === "rejected");
    if (failure) throw failure.reason;
  }

  #buildOptions(label: string, id: string) {
    return { params: { path: { device_id: id, label } }, signal: this.#control.signal };
  }

  #markDone(id: string): void {
    if (this.#left.delete(id)) this.done += 1;
  }
}

function isList(targets: readonly string[] | Filter): targets is readonly string[] {
  return Array.isArray(targets);
}

function isMissing(error: unknown): boolean {
  return error instanceof Problem && error.status === 404;
}
