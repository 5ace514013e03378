/** Devices on the plan of a floor: their dots, the selected one with its trail, and the one that is pointed at. */
import type { FloorView } from "../../../../floors/floor-view.svelte";
import type { Point } from "../../../../floors/geometry";
import { isStale } from "../../../../floors/live-positions";
import { type Dot, drawDots, drawLarge, drawTrail, findDot, readColors } from "../plan/dots";
import type { PositionFeed } from "../position-feed.svelte";
import type { Playback } from "./playback.svelte";
import { Preview } from "./preview.svelte";
import type { SelectedDevice } from "./selected-device.svelte";
import { listLines } from "./trail";

/** What the page shows of the devices. */
interface DeviceView {
  readonly floor: number | undefined;
  /** Devices with a place, which have marks of their own. */
  readonly placed: ReadonlyMap<string, string>;
  readonly selected: SelectedDevice | null;
  readonly playback: Playback | null;
}

export class DeviceLayer {
  readonly preview = new Preview();
  /** Position of the device that is pointed at, or that has the focus in the list; null for none. */
  readonly previewed = $derived.by(() => {
    const { playback, selected } = this.#shown;
    const { id } = this.preview;
    return id === null || id === selected?.id || playback !== null ? null : (this.feed.byDevice.get(id) ?? null);
  });
  readonly #shown = $derived.by(() => this.getShown());
  /** Dots of the devices that are not selected: none during playback, which shows the past of one device. */
  readonly #dots = $derived.by<readonly Dot[]>(() => {
    const { floor, placed, selected, playback } = this.#shown;
    return (playback === null ? this.feed.items : [])
      .filter((each) => each.floor === floor && !placed.has(each.device) && each.device !== selected?.id)
      .map((each) => ({ id: each.device, x: each.x, y: each.y, radius: each.radius, isStale: isStale(each, this.feed.now) }));
  });
  /** Dot of the selected device, now or at the time of the playback; null if it is not on this floor. */
  readonly #selectedDot = $derived.by<Dot | null>(() => {
    const { floor, selected, playback } = this.#shown;
    if (selected === null) return null;
    const now = selected.spot?.site === this.feed.siteId ? selected.spot : this.feed.byDevice.get(selected.id);
    const spot = playback === null ? now : playback.current;
    if (!spot || spot.floor !== floor) return null;
    return { id: selected.id, x: spot.x, y: spot.y, radius: spot.radius, isStale: playback === null && isStale(spot, this.feed.now) };
  });

  constructor(
    readonly feed: PositionFeed,
    readonly view: FloorView,
    readonly getShown: () => DeviceView,
  ) {}

  /** Draw the devices, and the selected one with its trail; during playback, only that. */
  draw(context: CanvasRenderingContext2D): void {
    const { floor, selected, playback } = this.#shown;
    const colors = readColors();
    drawDots(context, this.view, this.#dots, colors);
    const pointed = this.#dots.find(({ id }) => id === this.previewed?.device);
    if (pointed) drawLarge(context, this.view, pointed, colors.dot, colors.halo);
    const trail = (playback ?? selected)?.trail ?? [];
    if (floor !== undefined) drawTrail(context, this.view, listLines(trail, floor), colors.selected);
    if (this.#selectedDot) drawLarge(context, this.view, this.#selectedDot, colors.selected, colors.halo);
  }

  /** Return the dot at a point; `"cluster"` if there are too many, null if there is none. */
  find(point: Point): Dot | "cluster" | null {
    return findDot(this.view, this.#dots, point);
  }

  /** Preview the device at a point. */
  hover(point: Point | null): void {
    const found = point && this.find(point);
    this.preview.show(found === null || found === "cluster" ? null : found.id);
  }
}
