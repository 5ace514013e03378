/** State of the page in its address: what is shown, and how. */
import { withParam } from "../../query";
import { COLORINGS, type Coloring } from "./marks";
import { LAYOUTS, type LayoutName } from "./layouts";

export interface Span {
  readonly name: "6h" | "24h" | "7d" | "30d";
  /** Milliseconds between two positions of the time slider. */
  readonly step: number;
  readonly steps: number;
}

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;

/** Time spans of the slider, as long as links are kept by default. */
export const SPANS: readonly Span[] = [
  { name: "6h", step: 5 * MINUTE, steps: 72 },
  { name: "24h", step: 15 * MINUTE, steps: 96 },
  { name: "7d", step: HOUR, steps: 168 },
  { name: "30d", step: 6 * HOUR, steps: 120 },
];
const DEFAULT_SPAN: Span = SPANS[1] ?? { name: "24h", step: 15 * MINUTE, steps: 96 };

/** Threshold in dBm at which nothing is emphasized, and the highest one. */
export const NO_THRESHOLD = -100;
export const MAX_THRESHOLD = -50;
/** Number of folded branches that the address keeps: addresses have a limit. */
const MAX_FOLDED = 100;

export interface ViewQuery {
  readonly gateway: string | null;
  /** Past time in milliseconds since 1970; null: now. */
  readonly at: number | null;
  readonly span: Span;
  readonly layout: LayoutName;
  readonly coloring: Coloring;
  /** Links below this RSSI in dBm are emphasized. */
  readonly threshold: number;
  /** MAC of the selected node. */
  readonly selected: string | null;
  /** MACs of folded nodes; null: those of a mesh that is too large. */
  readonly folded: readonly string[] | null;
}

export function parseView(query: URLSearchParams): ViewQuery {
  const at = Date.parse(query.get("At") ?? "");
  const threshold = Number.parseInt(query.get("Below") ?? "", 10);
  return {
    gateway: query.get("Gateway"),
    at: Number.isNaN(at) ? null : at,
    span: SPANS.find(({ name }) => name === query.get("Span")) ?? DEFAULT_SPAN,
    layout: LAYOUTS.find((name) => name === query.get("Layout")) ?? "tree",
    coloring: COLORINGS.find((name) => name === query.get("Color")) ?? "signal",
    threshold: Math.min(Math.max(Number.isNaN(threshold) ? NO_THRESHOLD : threshold, NO_THRESHOLD), MAX_THRESHOLD),
    selected: query.get("Device"),
    folded: query.has("Fold") ? query.getAll("Fold").filter((mac) => mac !== "none") : null,
  };
}

/** Return the query with some of the state changed. Defaults are left out. */
export function withView(query: URLSearchParams, change: Partial<ViewQuery>): URLSearchParams {
  let next = query;
  const set = (name: string, value: string | readonly string[] | null): void => void (next = withParam(next, name, value));
  if (change.gateway !== undefined) set("Gateway", change.gateway);
  if (change.at !== undefined) set("At", change.at === null ? null : new Date(change.at).toISOString());
  if (change.span) set("Span", change.span === DEFAULT_SPAN ? null : change.span.name);
  if (change.layout) set("Layout", change.layout === "tree" ? null : change.layout);
  if (change.coloring) set("Color", change.coloring === "signal" ? null : change.coloring);
  if (change.threshold !== undefined) set("Below", change.threshold === NO_THRESHOLD ? null : String(change.threshold));
  if (change.selected !== undefined) set("Device", change.selected);
  if (change.folded === null) set("Fold", null);
  // "none" differs from a missing value: a large mesh is folded unless the user has unfolded it.
  else if (change.folded) set("Fold", change.folded.length === 0 ? "none" : change.folded.slice(0, MAX_FOLDED));
  return next;
}
