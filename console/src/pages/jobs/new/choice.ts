/** What the address says of a new job: which firmware, for which devices, and the step one is at. So a link can begin it
 * half-way, and Back leads to the step before. */
import type { Schemas } from "../../../api/client";
import { type Filter, clearFilters, parseFilter, isFiltered } from "../../../filtering/filters";
import { loadSelection, buildSelectionQuery } from "../../../jobs/selection";
import { withParam, withoutParams } from "../../../query";

export const STEPS = ["firmware", "devices", "plan", "review"] as const;
export type Step = (typeof STEPS)[number];

/** So many devices are asked for by their ids at once. */
const MOST_NAMED = 100;

export type Targets =
  | { readonly kind: "none" | "all" }
  /** Selected in another tab, or long ago: nobody knows them any more. */
  | { readonly kind: "lost" }
  | { readonly kind: "list"; readonly ids: readonly string[] }
  | { readonly kind: "filter"; readonly filter: Filter };

export interface Choice {
  readonly firmwareId: string | null;
  readonly targets: Targets;
  /** The step that is asked for; null: whichever has no answer yet. */
  readonly step: Step | null;
}

export function choiceIn(query: URLSearchParams): Choice {
  return {
    firmwareId: query.get("Firmware"),
    targets: targetsIn(query),
    step: STEPS.find((step) => step === query.get("Step")) ?? null,
  };
}

function targetsIn(query: URLSearchParams): Targets {
  const name = query.get("Selection");
  const ids = name === null ? [...new Set(query.getAll("Device"))] : loadSelection(name);
  if (ids === null) return { kind: "lost" };
  if (ids.length > 0) return { kind: "list", ids };
  const filter = parseFilter(query);
  if (isFiltered(filter)) return { kind: "filter", filter };
  return { kind: query.get("All") === "true" ? "all" : "none" };
}

export function withStep(query: URLSearchParams, step: Step): URLSearchParams {
  return withParam(query, "Step", step);
}

/** The same query with another firmware. Who chose devices by its model alone means those of the new one. */
export function withFirmware(
  query: URLSearchParams,
  firmware: Schemas["Firmware"],
  before: Schemas["Firmware"] | null,
): URLSearchParams {
  const next = withParam(query, "Firmware", firmware.id);
  const targets = targetsIn(query);
  const isByModel = before !== null && targets.kind === "filter" && targets.filter.ModelNumber === before.modelNumber;
  return isByModel ? withParam(next, "ModelNumber", firmware.modelNumber) : next;
}

/** The same query with the devices that one usually means, if none were chosen: those of the model. */
export function withUsual(query: URLSearchParams, firmware: Schemas["Firmware"]): URLSearchParams {
  return targetsIn(query).kind === "none" ? withParam(query, "ModelNumber", firmware.modelNumber) : query;
}

/** The filter that finds these devices; null: too many were named for a question. */
export function countable(targets: Targets): Filter | null {
  if (targets.kind === "list") return targets.ids.length <= MOST_NAMED ? { Ids: [...targets.ids] } : null;
  return targets.kind === "filter" ? targets.filter : {};
}

/** The same query with these devices and no others; none: they are chosen by filters from now on. */
export function withList(query: URLSearchParams, ids: readonly string[]): URLSearchParams {
  const next = withoutParams(clearFilters(query), "Device", "Selection", "All");
  const selection = query.get("Selection") ?? undefined;
  for (const [name, value] of buildSelectionQuery(ids, selection)) next.append(name, value);
  return next;
}

/** The devices as an order names them. */
export function targetsOf(targets: Targets): Schemas["Targets"] {
  if (targets.kind === "list") return { all: false, deviceIds: [...targets.ids] };
  if (targets.kind === "filter") return { all: false, filter: targets.filter };
  return { all: targets.kind === "all" };
}
