/** Dots of devices on the canvas of a floor, hollow if outdated, their radii and trails, and clusters of them. */
import type { FloorView } from "../../../../floors/floor-view.svelte";
import type { Point } from "../../../../floors/geometry";

export interface Dot extends Point {
  readonly id: string;
  readonly radius: number;
  /** Whether the device may be elsewhere by now. */
  readonly isStale: boolean;
}

interface Cluster extends Point {
  readonly count: number;
}

export interface Colors {
  readonly dot: string;
  readonly selected: string;
  readonly halo: string;
  readonly text: string;
}

/** Number of visible dots above which they are drawn as clusters. */
export const MAX_DOTS = 1500;
/** Number of visible dots above which only the radius of the selected one is drawn. */
const MAX_RADII = 60;
const CELL = 56;
const DOT_RADIUS = 5;
/** Width of a dot with its outline. */
const DOT_SIZE = 14;
const HIT_RADIUS = 14;
const FULL_CIRCLE = 2 * Math.PI;

/** Return the colors of the current theme. */
export function readColors(): Colors {
  const style = getComputedStyle(document.documentElement);
  const read = (name: string): string => style.getPropertyValue(name).trim();
  return { dot: read("--series-1"), selected: read("--series-2"), halo: read("--surface"), text: read("--on-accent") };
}

/** Return the dots that the map shows, with a margin so that a dot at the edge is not cut. */
export function listVisible(view: FloorView, dots: readonly Dot[]): readonly Dot[] {
  return dots.filter((dot) => {
    const { x, y } = view.toPixels(dot);
    return x > -HIT_RADIUS && y > -HIT_RADIUS && x < view.width + HIT_RADIUS && y < view.height + HIT_RADIUS;
  });
}

/** Draw the dots of a floor, with their radii if they are few. */
export function drawDots(context: CanvasRenderingContext2D, view: FloorView, dots: readonly Dot[], colors: Colors): void {
  const visible = listVisible(view, dots);
  if (visible.length > MAX_DOTS) return drawClusters(context, buildClusters(view, visible), colors);
  if (visible.length <= MAX_RADII) {
    for (const dot of visible) drawRadius(context, view, dot, colors.dot);
  }
  const ratio = context.getTransform().a;
  const [fresh, stale] = [renderDot(ratio, colors, false), renderDot(ratio, colors, true)];
  for (const dot of visible) {
    const { x, y } = view.toPixels(dot);
    context.drawImage(dot.isStale ? stale : fresh, x - DOT_SIZE / 2, y - DOT_SIZE / 2, DOT_SIZE, DOT_SIZE);
  }
}

/** Return a picture of a dot: copying it many times is much faster than drawing as many circles. */
function renderDot(ratio: number, colors: Colors, isStale: boolean): HTMLCanvasElement {
  const picture = document.createElement("canvas");
  picture.width = picture.height = Math.ceil(DOT_SIZE * ratio);
  const context = picture.getContext("2d");
  if (context === null) return picture;
  context.scale(ratio, ratio);
  context.arc(DOT_SIZE / 2, DOT_SIZE / 2, DOT_RADIUS, 0, FULL_CIRCLE);
  context.lineWidth = isStale ? 2 : 1.5;
  fillDot(context, colors.dot, colors.halo, isStale);
  return picture;
}

/** Fill the current circle with its color inside a halo; a stale one has both exchanged, so that it is hollow. */
function fillDot(context: CanvasRenderingContext2D, color: string, halo: string, isStale: boolean): void {
  [context.fillStyle, context.strokeStyle] = isStale ? [halo, color] : [color, halo];
  context.fill();
  context.stroke();
}

/** Draw the circle that holds a device with the stated probability. */
export function drawRadius(context: CanvasRenderingContext2D, view: FloorView, dot: Dot, color: string): void {
  const { x, y } = view.toPixels(dot);
  context.beginPath();
  context.arc(x, y, dot.radius * view.scale, 0, FULL_CIRCLE);
  context.fillStyle = context.strokeStyle = color;
  context.globalAlpha = 0.1;
  context.fill();
  context.globalAlpha = 0.5;
  context.lineWidth = 1;
  context.stroke();
  context.globalAlpha = 1;
}

/** Draw one dot larger than the others, with its radius. */
export function drawLarge(context: CanvasRenderingContext2D, view: FloorView, dot: Dot, color: string, halo: string): void {
  drawRadius(context, view, dot, color);
  const { x, y } = view.toPixels(dot);
  context.beginPath();
  context.arc(x, y, DOT_RADIUS + 3, 0, FULL_CIRCLE);
  context.lineWidth = 2;
  fillDot(context, color, halo, dot.isStale);
}

/** Draw the lines of a trail, the oldest pale. */
export function drawTrail(
  context: CanvasRenderingContext2D,
  view: FloorView,
  lines: readonly (readonly [Point, Point])[],
  color: string,
): void {
  context.strokeStyle = color;
  context.lineWidth = 2;
  context.lineCap = "round";
  for (const [index, line] of lines.entries()) {
    const [start, end] = [view.toPixels(line[0]), view.toPixels(line[1])];
    context.globalAlpha = 0.15 + (0.65 * (index + 1)) / (lines.length + 1);
    context.beginPath();
    context.moveTo(start.x, start.y);
    context.lineTo(end.x, end.y);
    context.stroke();
  }
  context.globalAlpha = 1;
}

/** Return the dot at a place on the map; `"cluster"` if there are too many, null if there is none. */
export function findDot(view: FloorView, dots: readonly Dot[], point: Point): Dot | "cluster" | null {
  const at = view.toPixels(point);
  const visible = listVisible(view, dots);
  let [nearest, least]: [Dot | null, number] = [null, HIT_RADIUS];
  for (const dot of visible) {
    const { x, y } = view.toPixels(dot);
    const distance = Math.hypot(x - at.x, y - at.y);
    if (distance <= least) [nearest, least] = [dot, distance];
  }
  if (visible.length <= MAX_DOTS) return nearest;
  return buildClusters(view, visible).some(({ x, y }) => Math.hypot(x - at.x, y - at.y) < CELL / 2) ? "cluster" : null;
}

/** Group dots by cells of the floor; a cluster is at the mean of its dots, in pixels. Cells are fixed to the floor, so
 * that clusters stay as they are while the map is moved. */
function buildClusters(view: FloorView, dots: readonly Dot[]): readonly Cluster[] {
  const cells = new Map<string, { x: number; y: number; count: number }>();
  const size = CELL / view.scale;
  for (const dot of dots) {
    const key = `${Math.floor(dot.x / size)} ${Math.floor(dot.y / size)}`;
    const { x, y } = view.toPixels(dot);
    const cell = cells.get(key) ?? { x: 0, y: 0, count: 0 };
    cells.set(key, { x: cell.x + x, y: cell.y + y, count: cell.count + 1 });
  }
  return [...cells.values()].map(({ x, y, count }) => ({ x: x / count, y: y / count, count }));
}

function drawClusters(context: CanvasRenderingContext2D, clusters: readonly Cluster[], colors: Colors): void {
  context.font = "600 11px system-ui, sans-serif";
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const { x, y, count } of clusters) {
    context.beginPath();
    context.arc(x, y, Math.min(CELL / 2, 8 + 3 * Math.log2(count + 1)), 0, FULL_CIRCLE);
    context.fillStyle = colors.dot;
    context.fill();
    context.fillStyle = colors.text;
    context.fillText(String(count), x, y);
  }
}
