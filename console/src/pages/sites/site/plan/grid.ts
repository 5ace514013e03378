/** Lines of the grid, and the length of the scale bar. */
import type { FloorView } from "../../../../floors/floor-view.svelte";

/** Pixels that lines of the grid are at least apart. */
const MIN_GAP = 48;
const MAX_LINES = 200;

/** Return the distance of grid lines in meters: 1, 2 or 5 times a power of ten. */
export function chooseStep(scale: number): number {
  const least = MIN_GAP / scale;
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least) ?? 10 * power;
}

/** Return the coordinates of the grid lines that are visible. */
export function listLines(view: FloorView): { readonly x: readonly number[]; readonly y: readonly number[] } {
  const step = chooseStep(view.scale);
  return {
    x: listMultiples(view.left, view.left + view.width / view.scale, step),
    y: listMultiples(view.top - view.height / view.scale, view.top, step),
  };
}

function listMultiples(from: number, to: number, step: number): readonly number[] {
  const first = Math.ceil(from / step);
  const count = Math.min(MAX_LINES, Math.max(0, Math.floor(to / step) - first + 1));
  return Array.from({ length: count }, (_, index) => (first + index) * step);
}
