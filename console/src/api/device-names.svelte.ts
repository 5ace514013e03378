/** Names of the devices on the page: loaded in batches, once each, and again after live events were missed. */
import { SvelteMap, SvelteSet } from "svelte/reactivity";

import { api, requireBody } from "./client";
import { formatMac } from "../text/format";

/** Number of ids per request: they are part of the address. */
const AT_ONCE = 50;

class DeviceNames {
  #known = new SvelteMap<string, string>();
  /** MACs with an up-to-date name. Other names are loaded again on use and shown meanwhile. */
  #fresh = new SvelteSet<string>();
  #wanted = new Set<string>();
  #isAsked = false;

  /** Return the name of a device, or its MAC while none is loaded. */
  get(mac: string): string {
    return this.#known.get(mac) || formatMac(mac);
  }

  /** Load the names of devices that are not up to date. */
  load(macs: Iterable<string>): void {
    for (const mac of macs) if (!this.#fresh.has(mac)) this.#wanted.add(mac);
    if (this.#wanted.size === 0 || this.#isAsked) return;
    this.#isAsked = true;
    queueMicrotask(() => void this.#ask());
  }

  /** Set the name of a device. */
  set(mac: string, name: string): void {
    this.#known.set(mac, name);
    this.#fresh.add(mac);
  }

  /** Update the name of a device after a live event, but only if its name was requested. */
  updateIfLoaded(mac: string, name: string): void {
    if (this.#known.has(mac)) this.set(mac, name);
  }

  /** Mark all names as outdated, after live events were missed. */
  invalidate(): void {
    this.#fresh.clear();
  }

  /** Delete all names when the user signs out. */
  clear(): void {
    this.#known.clear();
    this.#fresh.clear();
    this.#wanted.clear();
  }

  async #ask(): Promise<void> {
    const macs = [...this.#wanted].slice(0, AT_ONCE);
    for (const mac of macs) this.#wanted.delete(mac);
    this.#isAsked = macs.length > 0;
    if (!this.#isAsked) return;
    try {
      const found = await fetchDeviceNames(macs.map((mac) => `bmac-${mac}`));
      // Unknown devices keep their MAC and are not requested again.
      for (const mac of macs) this.set(mac, found.get(`bmac-${mac}`) ?? "");
    } catch {
      // The MAC is shown; the next use requests the name again.
    }
    this.#isAsked = false;
    if (this.#wanted.size > 0) this.load([]);
  }
}

export const deviceNames = new DeviceNames();

/** Fetch the current names of devices by id. Unknown devices are left out. */
export async function fetchDeviceNames(ids: readonly string[], signal?: AbortSignal): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (let start = 0; start < ids.length; start += AT_ONCE) {
    const query = { Ids: ids.slice(start, start + AT_ONCE), MaxResults: AT_ONCE };
    const { items } = requireBody(await api.GET("/api/v1/devices", { params: { query }, ...(signal && { signal }) }));
    for (const { id, friendlyName } of items) found.set(id, friendlyName);
  }
  return found;
}
