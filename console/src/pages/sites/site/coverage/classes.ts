/** Classes of expected coverage: by number of anchors, best signal, or radius of positions. */
import type { Schemas } from "../../../../api/client";
import type { Point } from "../../../../floors/geometry";
import { SIGNAL_CLASSES, classifySignal } from "../../../../mesh/signal-class";
import { en } from "../../../../text/en";

export type FloorCoverage = Schemas["FloorCoverage"];
export type Measure = "anchors" | "rssi" | "radius";
export const MEASURES: readonly Measure[] = ["anchors", "rssi", "radius"];

/** Shades of the plan, the best first; "none" without any anchor or position. */
export type Shade = "best" | "good" | "fair" | "poor" | "none";

export interface CoverageClass {
  readonly text: string;
  readonly shade: Shade;
}

export interface ClassShare extends CoverageClass {
  readonly cells: number;
}

/** Numbers of anchors: positions need three, better six. */
const MIN_ANCHORS = 3;
const GOOD_ANCHORS = 6;
/** Largest radius in meters of the classes. */
const RADII = [3, 5, 10] as const;
const words = en.sites.coverage.classes;

const NONE: CoverageClass = { text: words.noAnchor, shade: "none" };
const NO_POSITION: CoverageClass = { text: words.noPosition, shade: "none" };
const ANCHORS: readonly CoverageClass[] = [
  { text: words.many(GOOD_ANCHORS), shade: "best" },
  { text: words.enough(MIN_ANCHORS, GOOD_ANCHORS - 1), shade: "good" },
  { text: words.few, shade: "poor" },
  NONE,
];
const SHADES: readonly Shade[] = ["best", "good", "fair", "poor"];
const SIGNALS: readonly CoverageClass[] = [
  ...SIGNAL_CLASSES.map((name, index) => ({ text: words.signals[name], shade: SHADES[index] ?? "poor" })),
  NONE,
];
const SIZES: readonly CoverageClass[] = [
  ...RADII.map((radius, index) => ({ text: words.radius(radius), shade: SHADES[index] ?? "poor" })),
  { text: words.beyond(RADII[2]), shade: "poor" },
  NO_POSITION,
];
const CLASSES: Record<Measure, readonly CoverageClass[]> = { anchors: ANCHORS, rssi: SIGNALS, radius: SIZES };

/** Return the class of a cell; null where devices cannot be. */
export function classifyCell(coverage: FloorCoverage, measure: Measure, cell: number): CoverageClass | null {
  const count = coverage.anchors[cell] ?? null;
  return count === null ? null : (CLASSES[measure][findClass(coverage, measure, cell, count)] ?? null);
}

/** Return the number of cells of each class, the best class first. */
export function countClasses(coverage: FloorCoverage, measure: Measure): readonly ClassShare[] {
  const counts = new Map<CoverageClass, number>();
  for (const cell of coverage.anchors.keys()) {
    const found = classifyCell(coverage, measure, cell);
    if (found !== null) counts.set(found, (counts.get(found) ?? 0) + 1);
  }
  return CLASSES[measure].map((each) => ({ ...each, cells: counts.get(each) ?? 0 }));
}

/** Return the cell that contains a point of the floor; null outside and where devices cannot be. */
export function findCell(coverage: FloorCoverage, { x, y }: Point): number | null {
  const column = Math.floor((x - coverage.minX) / coverage.columnMeters);
  const row = Math.floor((y - coverage.minY) / coverage.rowMeters);
  if (column < 0 || row < 0 || column >= coverage.columns || row >= coverage.rows) return null;
  const cell = row * coverage.columns + column;
  return (coverage.anchors[cell] ?? null) === null ? null : cell;
}

/** Return the center of a cell. */
export function getCenter(coverage: FloorCoverage, cell: number): Point {
  const [column, row] = [cell % coverage.columns, Math.floor(cell / coverage.columns)];
  return {
    x: coverage.minX + (column + 0.5) * coverage.columnMeters,
    y: coverage.minY + (row + 0.5) * coverage.rowMeters,
  };
}

/** Return the cell with the fewest anchors, of several the one with the weakest signal. */
export function findWeakest(coverage: FloorCoverage): number | null {
  let weakest: number | null = null;
  const rank = (cell: number): number => (coverage.anchors[cell] ?? 0) * 1000 + (coverage.rssi[cell] ?? -999);
  for (const [cell, count] of coverage.anchors.entries()) {
    if (count !== null && (weakest === null || rank(cell) < rank(weakest))) weakest = cell;
  }
  return weakest;
}

function findClass(coverage: FloorCoverage, measure: Measure, cell: number, count: number): number {
  if (measure === "anchors") return count >= GOOD_ANCHORS ? 0 : count >= MIN_ANCHORS ? 1 : count > 0 ? 2 : 3;
  if (measure === "rssi") {
    const rssi = coverage.rssi[cell] ?? null;
    return rssi === null ? SIGNALS.length - 1 : SIGNAL_CLASSES.indexOf(classifySignal(rssi));
  }
  const radius = coverage.radius[cell] ?? null;
  if (radius === null) return SIZES.length - 1;
  const index = RADII.findIndex((most) => radius <= most);
  return index < 0 ? RADII.length : index;
}
