/** Selected device of a site: its position with readings, and the trail of the last minutes. */
import { type Schemas, api, requireBody } from "../../../../api/client";
import { Resource } from "../../../../api/resource.svelte";
import { clock } from "../../../../clock.svelte";
import { startPolling } from "../../../../live/polling";
import { live } from "../../../../live/socket.svelte";
import { fetchPastPositions } from "./past-positions";

const TRAIL_MS = 300_000;

export class SelectedDevice {
  readonly answer = new Resource<Schemas["PositionAnswer"]>();
  readonly #past = new Resource<readonly Schemas["PastPosition"][]>();
  readonly #newest = $state<{ positions: readonly Schemas["Position"][] }>({ positions: [] });

  readonly position = $derived(this.answer.value?.position ?? null);
  /** Places of the last minutes, the oldest first. */
  readonly trail = $derived.by(() => {
    const since = clock.now - TRAIL_MS;
    const past = this.#past.value ?? [];
    const last = Date.parse(past.at(-1)?.time ?? "") || 0;
    const newest = this.#newest.positions.filter(({ time }) => Date.parse(time) > last);
    return [...past, ...newest].filter(({ time }) => Date.parse(time) >= since);
  });

  constructor(
    readonly id: string,
    readonly siteId: string,
  ) {}

  /** Keep the position up to date until the returned function is called. */
  start(): () => void {
    const stopPolling = startPolling(() => this.load());
    void this.load();
    const now = clock.read();
    void this.#past.load(async (signal) => {
      return (await fetchPastPositions(this.id, this.siteId, [now - TRAIL_MS, now], signal)).items;
    });
    return () => {
      stopPolling();
      this.answer.stop();
      this.#past.stop();
    };
  }

  async load(): Promise<void> {
    const params = { path: { device_id: this.id } };
    await this.answer.load(async (signal) => {
      const answer = requireBody(await api.GET("/api/v1/devices/{device_id}/position", { params, signal }));
      return live.state === "paused" && this.answer.value ? this.answer.value : answer;
    });
    const position = this.position;
    const { positions } = this.#newest;
    if (position === null || position.site !== this.siteId || position.time === positions.at(-1)?.time) return;
    const since = clock.now - TRAIL_MS;
    this.#newest.positions = [...positions.filter(({ time }) => Date.parse(time) >= since), position];
  }
}
