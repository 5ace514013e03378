/** Position of a device with its readings, kept up to date by live events. */
import { type Schemas, api, requireBody } from "../api/client";
import { Resource } from "../api/resource.svelte";
import { throttleEvents } from "../live/frames";
import { startPolling } from "../live/polling";
import { live } from "../live/socket.svelte";
import { type LivePosition, isCurrent, parsePositions } from "./live-positions";

/** Milliseconds between two requests: a device that fell silent has no events. */
const POLL_INTERVAL = 30_000;
/** Milliseconds between two requests for the readings of a device that moves. */
const EVENT_PAUSE = 5000;

/** What a subscriber does with events, besides what this module does. */
interface Follower {
  onPosition(position: LivePosition): void;
  onResync(): void;
}

export class DevicePosition {
  readonly answer = new Resource<Schemas["PositionAnswer"]>();
  /** Loaded position, the mean of a minute of readings. Null while it is not loaded, or if it is unknown. */
  readonly position = $derived(this.answer.value?.position ?? null);
  /** Position of the newest event that is not outdated. */
  readonly followed = $derived.by<LivePosition | null>(() => {
    const newest = this.#newest;
    return newest && this.position && isCurrent(newest, this.position) ? newest : null;
  });
  #newest = $state.raw<LivePosition | null>(null);

  constructor(readonly id: string) {}

  /** Keep the position up to date until the returned function is called. */
  start(follower?: Follower): () => void {
    const readings = throttleEvents(() => EVENT_PAUSE, () => void this.load());
    const unsubscribe = live.subscribe({
      filter: { Types: ["position"], Ids: [this.id] },
      onEvent: (event) => {
        for (const position of parsePositions([event])) {
          this.#newest = position;
          follower?.onPosition(position);
        }
        readings.add(event);
      },
      onResync: () => {
        void this.load();
        follower?.onResync();
      },
    });
    const stopPolling = startPolling(() => this.load(), POLL_INTERVAL);
    void this.load();
    return () => {
      unsubscribe();
      stopPolling();
      readings.stop();
      this.answer.stop();
    };
  }

  async load(): Promise<void> {
    const params = { path: { device_id: this.id } };
    await this.answer.load(async (signal) => {
      const answer = requireBody(await api.GET("/api/v1/devices/{device_id}/position", { params, signal }));
      // Values do not change while the user has paused them.
      return live.state === "paused" && this.answer.value ? this.answer.value : answer;
    });
  }
}
