/** Selected device of a site: its position with readings, and the trail of the last minutes. */
import { type Schemas, api, requireBody } from "../../../../api/client";
import { Resource } from "../../../../api/resource.svelte";
import { clock } from "../../../../clock.svelte";
import { startPolling } from "../../../../live/polling";
import { live } from "../../../../live/socket.svelte";
import { type PastPositions, fetchPastPositions } from "./past-positions";

const TRAIL_MS = 300_000;

export class SelectedDevice {
  readonly answer = new Resource<Schemas["PositionAnswer"]>();
  readonly position = $derived(this.answer.value?.position ?? null);
  readonly #past = new Resource<PastPositions>();
  /** Positions of the last minutes, the oldest first. They follow a moving device faster than the current position,
   * which is the mean of a minute. */
  readonly trail = $derived(this.#past.value?.items ?? []);

  constructor(
    readonly id: string,
    readonly siteId: string,
  ) {}

  /** Keep the position up to date until the returned function is called. */
  start(): () => void {
    const stopPolling = startPolling(() => this.load());
    void this.load();
    return () => {
      stopPolling();
      this.answer.stop();
      this.#past.stop();
    };
  }

  async load(): Promise<void> {
    const before = this.position?.time;
    const params = { path: { device_id: this.id } };
    await this.answer.load(async (signal) => {
      const answer = requireBody(await api.GET("/api/v1/devices/{device_id}/position", { params, signal }));
      return live.state === "paused" && this.answer.value ? this.answer.value : answer;
    });
    if (this.position === null || this.position.time === before) return;
    const now = clock.read();
    await this.#past.load((signal) => fetchPastPositions(this.id, this.siteId, [now - TRAIL_MS, now], signal));
  }
}
