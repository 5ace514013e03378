/** Chart on a canvas. This module imports uPlot, so it is loaded only when there is something to draw. */
import "uplot/dist/uPlot.min.css";

import uPlot from "uplot";

import { formatAxisTime, formatDecimal } from "../text/format";
import { LINE_COLORS, LINE_DASHES } from "./line-styles";
import type { Line, Point } from "./points";

export interface TimeRange {
  readonly from: number;
  readonly to: number;
}

export interface PlotOptions extends TimeRange {
  readonly lines: readonly Line[];
  readonly width: number;
  readonly height: number;
  /** Called with the time at the pointer, or null when it leaves. */
  onmove(time: number | null): void;
  /** Called with a range that was selected by dragging. */
  onzoom(from: number, to: number): void;
}

/** Parts of a line: the line itself, and the edges of the band around it. */
const SERIES_PARTS = ["mean", "max", "min"] as const;
const BAND_OPACITY = "26";
/** Number of points up to which they are drawn as dots, so that single points are visible. */
const MAX_DOTS = 60;
const MIN_DRAG = 6;
const AXIS_GAP = 18;
/** Half the width of the longest time label, which may be at the end of the axis. */
const HALF_LABEL = 28;
const MIN_AXIS_WIDTH = 52;
const DIGIT_WIDTH = 7;

export class Plot {
  readonly #plot: uPlot;
  #range: TimeRange;
  #cursor: number | null = null;
  #isUpdating = false;

  constructor(target: HTMLElement, options: PlotOptions) {
    this.#range = options;
    this.#plot = new uPlot(this.#options(target, options), alignLines(options.lines), target);
  }

  show(lines: readonly Line[], frame: TimeRange): void {
    this.#range = frame;
    this.#updateSilently(() => this.#plot.setData(alignLines(lines)));
    // The times below the cursor have changed.
    this.point(this.#cursor);
  }

  /** Move the cursor to a time, as when it moves over another chart. */
  point(time: number | null): void {
    this.#cursor = time;
    const left = time === null ? -10 : this.#plot.valToPos(time / 1000, "x");
    this.#updateSilently(() => this.#plot.setCursor({ left, top: time === null ? -10 : 0 }, false));
  }

  resize(width: number, height: number): void {
    this.#updateSilently(() => this.#plot.setSize({ width, height }));
  }

  destroy(): void {
    this.#plot.destroy();
  }

  /** Update the plot without reporting it as a move of the pointer. */
  #updateSilently(update: () => void): void {
    this.#isUpdating = true;
    this.#plot.batch(update);
    this.#isUpdating = false;
  }

  #options(target: HTMLElement, { lines, width, height, onmove, onzoom }: PlotOptions): uPlot.Options {
    const style = getComputedStyle(target);
    const colour = (token: string): string => style.getPropertyValue(token).trim();
    const font = `12px ${colour("--font")}`;
    const axis = { stroke: colour("--text-3"), font, ticks: { show: false } };
    const grid = { stroke: colour("--line"), width: 1 };
    return {
      width,
      height,
      legend: { show: false },
      padding: [8, HALF_LABEL, 0, 0],
      scales: { x: { time: true, range: () => [this.#range.from / 1000, this.#range.to / 1000] } },
      axes: [
        {
          ...axis,
          grid: { show: false },
          size: 28,
          space: 70,
          values: (_plot, splits, _axis, _space, step) => splits.map((split) => formatAxisTime(split * 1000, step * 1000)),
        },
        {
          ...axis,
          grid,
          size: (_plot, values) => computeAxisWidth(values ?? []),
          space: 36,
          values: (_plot, splits) => splits.map(formatDecimal),
        },
      ],
      series: [{}, ...lines.flatMap((line, index) => buildSeries(line, index, colour))],
      bands: lines.map((line, index) => ({
        series: [index * SERIES_PARTS.length + 2, index * SERIES_PARTS.length + 3],
        fill: colour(`--${LINE_COLORS[line.tone % LINE_COLORS.length]}`) + BAND_OPACITY,
      })),
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false, dist: MIN_DRAG },
        points: { size: 7 },
      },
      hooks: {
        setCursor: [
          (plot) => {
            if (this.#isUpdating) return;
            const { left, idx } = plot.cursor;
            const x = idx === null || idx === undefined ? undefined : plot.data[0][idx];
            onmove(left === undefined || left < 0 || x === undefined ? null : x * 1000);
          },
        ],
        setSelect: [
          (plot) => {
            const { left, width: wide } = plot.select;
            if (wide < MIN_DRAG) return;
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            onzoom(plot.posToVal(left, "x") * 1000, plot.posToVal(left + wide, "x") * 1000);
          },
        ],
      },
    };
  }
}

/** Return the approximate width of the longest number on the axis. */
function computeAxisWidth(values: readonly string[]): number {
  return Math.max(MIN_AXIS_WIDTH, Math.max(...values.map((value) => value.length)) * DIGIT_WIDTH + AXIS_GAP);
}

function buildSeries(line: Line, index: number, colour: (token: string) => string): uPlot.Series[] {
  const stroke = colour(`--${LINE_COLORS[line.tone % LINE_COLORS.length]}`);
  const edge: uPlot.Series = { width: 0, points: { show: false } };
  const mean: uPlot.Series = {
    label: line.name,
    stroke,
    width: 1.75,
    dash: [...(LINE_DASHES[index % LINE_DASHES.length] ?? [])],
    gaps: (_plot, _series, _first, _last, gaps) => gaps.map(([from, to]) => [from - 1, to + 1]),
    points: { show: (plot) => plot.data[0].length <= MAX_DOTS, size: 4, fill: stroke },
  };
  return [mean, edge, edge];
}

/** Align all lines to common times. A line continues where it has no point, and breaks where samples are missing. */
function alignLines(lines: readonly Line[]): uPlot.AlignedData {
  const tables = lines.map((line): uPlot.AlignedData => [
    line.points.map((point) => point.time / 1000),
    ...SERIES_PARTS.map((part) => line.points.map((point: Point) => point[part])),
  ]);
  return tables.length === 0 ? [[]] : uPlot.join(tables);
}
