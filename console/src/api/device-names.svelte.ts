/** Names of the devices on the page: loaded in batches, once each, and again after live events were missed. */
import { SvelteMap, SvelteSet } from "svelte/reactivity";

import { api, requireBody } from "./client";
import { formatMac } from "../text/format";

/** Number of ids per request: they are part of the address. */
const BATCH_SIZE = 50;

class DeviceNames {
  #names = new SvelteMap<string, string>();
  /** MACs with an up-to-date name. Other names are loaded again on use and shown meanwhile. */
  #upToDate = new SvelteSet<string>();
  #pending = new Set<string>();
  #isScheduled = false;

  /** Return the name of a device, or its MAC while none is loaded. */
  get(mac: string): string {
    return this.#names.get(mac) || formatMac(mac);
  }

  /** Load the names of devices that are not up to date. */
  load(macs: Iterable<string>): void {
    for (const mac of macs) if (!this.#upToDate.has(mac)) this.#pending.add(mac);
    if (this.#pending.size === 0 || this.#isScheduled) return;
    this.#isScheduled = true;
    queueMicrotask(() => void this.#fetchBatch());
  }

  /** Set the name of a device. */
  set(mac: string, name: string): void {
    this.#names.set(mac, name);
    this.#upToDate.add(mac);
  }

  /** Update the name of a device after a live event, but only if its name was requested. */
  updateIfLoaded(mac: string, name: string): void {
    if (this.#names.has(mac)) this.set(mac, name);
  }

  /** Mark all names as outdated, after live events were missed. */
  invalidate(): void {
    this.#upToDate.clear();
  }

  /** Delete all names when the user signs out. */
  clear(): void {
    this.#names.clear();
    this.#upToDate.clear();
    this.#pending.clear();
  }

  async #fetchBatch(): Promise<void> {
    const macs = [...this.#pending].slice(0, BATCH_SIZE);
    for (const mac of macs) this.#pending.delete(mac);
    this.#isScheduled = macs.length > 0;
    if (!this.#isScheduled) return;
    try {
      const found = await fetchDeviceNames(macs.map((mac) => `bmac-${mac}`));
      // Unknown devices keep their MAC and are not requested again.
      for (const mac of macs) this.set(mac, found.get(`bmac-${mac}`) ?? "");
    } catch {
      // The MAC is shown; the next use requests the name again.
    }
    this.#isScheduled = false;
    if (this.#pending.size > 0) this.load([]);
  }
}

export const deviceNames = new DeviceNames();

/** Fetch the current names of devices by id. Unknown devices are left out. */
export async function fetchDeviceNames(ids: readonly string[], signal?: AbortSignal): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (let start = 0; start < ids.length; start += BATCH_SIZE) {
    const query = { Ids: ids.slice(start, start + BATCH_SIZE), MaxResults: BATCH_SIZE };
    const { items } = requireBody(await api.GET("/api/v1/devices", { params: { query }, ...(signal && { signal }) }));
    for (const { id, friendlyName } of items) found.set(id, friendlyName);
  }
  return found;
}
