/** What people call the devices that are mentioned here; each is asked for once, many at a time, and again when news of
 * it may have been missed. */
import { SvelteMap, SvelteSet } from "svelte/reactivity";

import { api, requireBody } from "./client";
import { formatMac } from "../text/format";

/** So many are asked for at once: their ids stand in an address. */
const AT_ONCE = 50;

class DeviceNames {
  #known = new SvelteMap<string, string>();
  /** Whose name is not older than what is told live; who mentions another asks for it, and shows the old one meanwhile. */
  #fresh = new SvelteSet<string>();
  #wanted = new Set<string>();
  #isAsked = false;

  /** The name of the device with a MAC; its address while nobody knows one. */
  get(mac: string): string {
    return this.#known.get(mac) || formatMac(mac);
  }

  /** Find out how devices are called. */
  load(macs: Iterable<string>): void {
    for (const mac of macs) if (!this.#fresh.has(mac)) this.#wanted.add(mac);
    if (this.#wanted.size === 0 || this.#isAsked) return;
    this.#isAsked = true;
    queueMicrotask(() => void this.#ask());
  }

  /** A device was given a name. */
  set(mac: string, name: string): void {
    this.#known.set(mac, name);
    this.#fresh.add(mac);
  }

  /** A device is told of, with its name: of those that nobody mentions nothing is kept. */
  updateIfLoaded(mac: string, name: string): void {
    if (this.#known.has(mac)) this.set(mac, name);
  }

  /** Something was missed, a new name perhaps. */
  invalidate(): void {
    this.#fresh.clear();
  }

  /** Somebody signs out: the next one may be another. */
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
      // Who is not known stays an address, and is not asked for again.
      for (const mac of macs) this.set(mac, found.get(`bmac-${mac}`) ?? "");
    } catch {
      // An address will do; the next one who mentions them asks again.
    }
    this.#isAsked = false;
    if (this.#wanted.size > 0) this.load([]);
  }
}

export const deviceNames = new DeviceNames();

/** What people call these devices now, by their ids; those that are not known are left out. */
export async function fetchDeviceNames(ids: readonly string[], signal?: AbortSignal): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  for (let start = 0; start < ids.length; start += AT_ONCE) {
    const query = { Ids: ids.slice(start, start + AT_ONCE), MaxResults: AT_ONCE };
    const { items } = requireBody(await api.GET("/api/v1/devices", { params: { query }, ...(signal && { signal }) }));
    for (const { id, friendlyName } of items) found.set(id, friendlyName);
  }
  return found;
}
