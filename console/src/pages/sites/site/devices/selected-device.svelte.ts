/** Selected device of a site: its position with readings, and the trail of the last minutes. */
import { Resource } from "../../../../api/resource.svelte";
import { clock } from "../../../../clock.svelte";
import { DevicePosition } from "../../../../floors/device-position.svelte";
import type { LivePosition } from "../../../../floors/live-positions";
import { type PastPositions, fetchPastPositions } from "./past-positions";
import { joinTrail } from "./trail";

const TRAIL_MS = 300_000;
/** Milliseconds after which the end of the trail is cut again. */
const TRAIL_STEP = 10_000;

/** Place of a device at a time. */
type Spot = Omit<LivePosition, "device">;

export class SelectedDevice {
  readonly now: DevicePosition;
  readonly #past = new Resource<PastPositions>();
  /** Positions since the past ones were loaded. */
  #events = $state.raw<readonly LivePosition[]>([]);
  readonly #trailStart = $derived(clock.now - (clock.now % TRAIL_STEP) - TRAIL_MS);
  /** Positions of the last minutes on the site, the oldest first. */
  readonly trail = $derived(
    joinTrail<Spot>(this.#past.value?.items ?? [], this.#events, this.#trailStart).filter(({ site }) => site === this.siteId),
  );
  /** Where the device is now: the end of its trail. Null if its position is unknown. */
  readonly spot = $derived.by<Spot | null>(() => {
    const { position, followed } = this.now;
    if (position === null || followed !== null) return followed;
    const last = this.trail.at(-1);
    // The time of a past position is the end of its step, which may be to come.
    return last?.site === position.site ? { ...last, time: position.time } : position;
  });

  constructor(
    readonly id: string,
    readonly siteId: string,
  ) {
    this.now = new DevicePosition(id);
  }

  /** Keep the position up to date until the returned function is called. */
  start(): () => void {
    const stop = this.now.start({
      onPosition: (position) => this.#follow(position),
      onResync: () => void this.#loadTrail(),
    });
    void this.#loadTrail();
    return () => {
      stop();
      this.#past.stop();
    };
  }

  /** Load the past positions, which replace those of events that came before. */
  async #loadTrail(): Promise<void> {
    const now = clock.read();
    await this.#past.load(
      (signal) => fetchPastPositions(this.id, this.siteId, [now - TRAIL_MS, now], signal),
      () => (this.#events = this.#events.filter(({ time }) => Date.parse(time) >= now)),
    );
  }

  #follow(position: LivePosition): void {
    const oldest = Date.parse(position.time) - TRAIL_MS;
    this.#events = [...this.#events, position].filter(({ time }) => Date.parse(time) > oldest);
  }
}
