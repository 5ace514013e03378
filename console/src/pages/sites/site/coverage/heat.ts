/** Heat of expected coverage on the canvas of a floor. */
import type { FloorView } from "../../../../floors/floor-view.svelte";
import type { Box } from "../../../../floors/geometry";
import { type FloorCoverage, type Measure, type Shade, classifyCell } from "./classes";

/** Color and opacity of each shade; blue against orange and red is told apart without seeing green. */
export const SHADES: Record<Shade, { readonly token: string; readonly opacity: number }> = {
  best: { token: "--series-1", opacity: 0.55 },
  good: { token: "--series-1", opacity: 0.28 },
  fair: { token: "--series-2", opacity: 0.3 },
  poor: { token: "--series-2", opacity: 0.65 },
  none: { token: "--bad", opacity: 0.7 },
};

/** Draw the classes of all cells. The last cells may reach beyond the floor: they are cut at its edge. */
export function drawHeat(
  context: CanvasRenderingContext2D,
  view: FloorView,
  floor: Box,
  coverage: FloorCoverage,
  measure: Measure,
): void {
  const { minX, minY, columns, rows, columnMeters, rowMeters } = coverage;
  const colors = readColors();
  const [start, end] = [view.toPixels({ x: floor.minX, y: floor.maxY }), view.toPixels({ x: floor.maxX, y: floor.minY })];
  context.save();
  context.beginPath();
  context.rect(start.x, start.y, end.x - start.x, end.y - start.y);
  context.clip();
  for (let row = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1) {
      const found = classifyCell(coverage, measure, row * columns + column);
      if (found === null) continue;
      // Edges on whole pixels: neither gaps nor overlaps between cells are visible.
      const from = view.toPixels({ x: minX + column * columnMeters, y: minY + (row + 1) * rowMeters });
      const to = view.toPixels({ x: minX + (column + 1) * columnMeters, y: minY + row * rowMeters });
      const [left, top] = [Math.round(from.x), Math.round(from.y)];
      context.fillStyle = colors.get(found.shade) ?? "";
      context.globalAlpha = SHADES[found.shade].opacity;
      context.fillRect(left, top, Math.round(to.x) - left, Math.round(to.y) - top);
    }
  }
  context.restore();
}

/** Return the colors of the shades in the current theme. */
function readColors(): ReadonlyMap<Shade, string> {
  const style = getComputedStyle(document.documentElement);
  const shades = Object.entries(SHADES) as [Shade, { readonly token: string }][];
  return new Map(shades.map(([shade, { token }]) => [shade, style.getPropertyValue(token).trim()]));
}
