/** Playback of the past positions of a device. */
import type { Schemas } from "../../../../api/client";
import { Resource } from "../../../../api/resource.svelte";
import { clock } from "../../../../clock.svelte";
import { type PastPositions, fetchPastPositions } from "./past-positions";

export const RANGES = { "10m": 600_000, "1h": 3_600_000, "6h": 21_600_000, "24h": 86_400_000 } as const;
export type Range = keyof typeof RANGES;
export const RANGE_NAMES = Object.keys(RANGES) as readonly Range[];

/** Milliseconds that a position is shown. */
const STEP_MS = 200;
/** Number of positions before the current one that are drawn as a trail. */
const TRAIL_LENGTH = 20;

export class Playback {
  readonly loaded = new Resource<PastPositions>();
  readonly items = $derived<PastPositions["items"]>(this.loaded.value?.items ?? []);
  /** Index of the shown position. */
  index = $state(0);
  isPlaying = $state(false);
  readonly current = $derived<Schemas["PastPosition"] | null>(this.items[this.index] ?? null);
  /** Positions until the current one, the oldest first. */
  readonly trail = $derived(this.items.slice(Math.max(0, this.index - TRAIL_LENGTH), this.index + 1));
  #timer: ReturnType<typeof setInterval> | undefined;

  constructor(
    readonly device: string,
    readonly siteId: string,
    readonly range: Range,
    /** ISO time at which the range ends; null for now. */
    readonly until: string | null,
  ) {}

  async load(): Promise<void> {
    await this.loaded.load(
      (signal) => {
        const end = this.until === null ? clock.read() : Date.parse(this.until);
        return fetchPastPositions(this.device, this.siteId, [end - RANGES[this.range], end], signal);
      },
      ({ items }) => (this.index = Math.max(0, items.length - 1)),
    );
  }

  /** Play from the current position, or from the beginning if it is the last one. */
  play(): void {
    if (this.index >= this.items.length - 1) this.index = 0;
    this.isPlaying = true;
    clearInterval(this.#timer);
    this.#timer = setInterval(() => {
      if (this.index < this.items.length - 1) this.index += 1;
      else this.pause();
    }, STEP_MS);
  }

  pause(): void {
    clearInterval(this.#timer);
    this.isPlaying = false;
  }

  stop(): void {
    this.pause();
    this.loaded.stop();
  }
}
