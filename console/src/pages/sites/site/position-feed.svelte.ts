/** Current positions of the devices on a site: loaded once, then followed by live events. */
import { type Schemas, api, requireJson } from "../../../api/client";
import { fetchDeviceNames } from "../../../api/device-names.svelte";
import { Resource } from "../../../api/resource.svelte";
import { clock } from "../../../clock.svelte";
import { type LivePosition, isCurrent, parsePositions } from "../../../floors/live-positions";
import { throttleEvents } from "../../../live/frames";
import { startPolling } from "../../../live/polling";
import { live } from "../../../live/socket.svelte";

type SitePositions = Schemas["SitePositions"];
type SitePosition = Schemas["SitePosition"];

/** Milliseconds between two requests: devices that fell silent, and anchors that do not fit, have no events. */
const POLL_INTERVAL = 60_000;
/** Milliseconds between two changes by events: a site may have ten thousand devices, and all of them are copied. */
const EVENT_PAUSE = 1000;
/** Milliseconds after its last reading for which a device is on a site (rest-259). */
const MAX_AGE = 900_000;
/** Milliseconds between two checks of all ages. */
const AGE_STEP = 10_000;

export class PositionFeed {
  readonly loaded = new Resource<SitePositions>();
  /** Time with which ages are compared, in milliseconds since 1970. */
  readonly now = $derived(clock.now - (clock.now % AGE_STEP));
  readonly items = $derived.by<readonly SitePosition[]>(() => [...this.byDevice.values()]);
  readonly suspiciousAnchors = $derived<SitePositions["suspiciousAnchors"]>(this.loaded.value?.suspiciousAnchors ?? []);
  readonly byDevice = $derived.by(() => this.#mergePositions());

  /** Newest event of each device that was on this site when the page was opened, or came since. */
  #events = $state.raw<ReadonlyMap<string, LivePosition>>(new Map());
  /** Names of devices that came since the list was loaded. */
  #names = $state.raw<ReadonlyMap<string, string>>(new Map());

  constructor(readonly siteId: string) {}

  /** Keep the positions up to date until the returned function is called. `onResync` is called after events were
   * missed. */
  start(onResync: () => void): () => void {
    const batches = throttleEvents(
      () => EVENT_PAUSE,
      (events) => this.#apply(parsePositions(events)),
    );
    const unsubscribe = live.subscribe({
      filter: { Types: ["position"] },
      onEvent: batches.add,
      onResync: () => {
        void this.load();
        onResync();
      },
    });
    const stopPolling = startPolling(() => this.load(), POLL_INTERVAL);
    void this.load();
    return () => {
      unsubscribe();
      batches.stop();
      stopPolling();
      this.loaded.stop();
    };
  }

  async load(): Promise<void> {
    const params = { path: { site_id: this.siteId } };
    await this.loaded.load(async (signal) => {
      const before = this.#events;
      const positions = requireJson(await api.GET("/api/v1/sites/{site_id}/positions", { params, signal }));
      // Values do not change while the user has paused them.
      if (live.state === "paused" && this.loaded.value) return this.loaded.value;
      this.#dropMissing(positions, before);
      return positions;
    });
  }

  /** Drop the events of devices that the service no longer lists, unless they came after the events `before`. */
  #dropMissing({ items }: SitePositions, before: ReadonlyMap<string, LivePosition>): void {
    const listed = new Set(items.map(({ device }) => device));
    const kept = [...this.#events].filter(([device, event]) => listed.has(device) || before.get(device) !== event);
    this.#events = new Map(kept);
  }

  /** Apply positions of all sites: a device that another site receives better has left this one. */
  #apply(positions: readonly LivePosition[]): void {
    const known = this.byDevice;
    const wanted = positions.filter(({ device, site }) => site === this.siteId || known.has(device));
    if (wanted.length === 0) return;
    this.#events = new Map([...this.#events, ...wanted.map((each) => [each.device, each] as const)]);
    void this.#loadNames(wanted.map(({ device }) => device).filter((device) => !known.has(device)));
  }

  async #loadNames(devices: readonly string[]): Promise<void> {
    if (devices.length === 0) return;
    const names = await fetchDeviceNames(devices).catch(() => new Map<string, string>());
    this.#names = new Map([...this.#names, ...names]);
  }

  #mergePositions(): ReadonlyMap<string, SitePosition> {
    // Without a connection the service cannot say which devices have left. Values that are paused stay.
    const oldest = live.state === "paused" ? 0 : this.now - MAX_AGE;
    const isRecent = ({ time }: { readonly time: string }): boolean => Date.parse(time) > oldest;
    const listed = (this.loaded.value?.items ?? []).filter(isRecent);
    const merged = new Map(listed.map((each) => [each.device, each]));
    for (const event of this.#events.values()) {
      const before = merged.get(event.device);
      if (!isRecent(event) || (before && !isCurrent(event, before))) continue;
      const { device, site, floor, x, y, radius, time } = event;
      if (site !== this.siteId) merged.delete(device);
      else merged.set(device, { device, name: before?.name ?? this.#names.get(device) ?? "", floor, x, y, radius, time });
    }
    return merged;
  }
}
