/** State of the page in its address: what is shown, and how. */
import { withParam } from "../../query";
import { DEFAULT_FOLDING, type Folding } from "./folding";
import { LAYOUTS, type LayoutName } from "./layouts";
import { COLORINGS, type Coloring } from "./marks";

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
  readonly folding: Folding;
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
    folding: parseFolding(query.getAll("Fold")),
  };
}

/** Parse the rule of folding, if there is one, and the MACs to which the opposite applies. */
function parseFolding(values: readonly string[]): Folding {
  const [first, ...others] = values;
  return first === "all" || first === "none" ? { rule: first, exceptions: others } : { ...DEFAULT_FOLDING, exceptions: values };
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
  if (change.folding) {
    const { rule, exceptions } = change.folding;
    set("Fold", [...(rule === DEFAULT_FOLDING.rule ? [] : [rule]), ...exceptions]);
  }
  return next;
}
