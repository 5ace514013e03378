/** Parameters of a new job in the page address: firmware, devices, and the current step. A link can open the form partly
 * filled in, and the Back button of the browser returns to the previous step. */
import type { Schemas } from "../../../api/client";
import { type Filter, clearFilters, parseFilter, isFiltered } from "../../../filtering/filters";
import { loadSelection, buildSelectionQuery } from "../../../jobs/selection";
import { withParam, withoutParams } from "../../../query";

export const STEPS = ["firmware", "devices", "plan", "review"] as const;
export type Step = (typeof STEPS)[number];

/** Maximum number of device ids in one request. */
const MAX_IDS = 100;

export type Targets =
  | { readonly kind: "none" | "all" }
  /** Devices selected in another tab or too long ago: the selection is no longer stored. */
  | { readonly kind: "lost" }
  | { readonly kind: "list"; readonly ids: readonly string[] }
  | { readonly kind: "filter"; readonly filter: Filter };

export interface JobParameters {
  readonly firmwareId: string | null;
  readonly targets: Targets;
  /** Requested step; null: the first incomplete step, at most the plan. */
  readonly step: Step | null;
}

export function parseParameters(query: URLSearchParams): JobParameters {
  return {
    firmwareId: query.get("Firmware"),
    targets: parseTargets(query),
    step: STEPS.find((step) => step === query.get("Step")) ?? null,
  };
}

function parseTargets(query: URLSearchParams): Targets {
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

/** Return the query with another firmware. A filter by the model of the previous firmware changes to the new model. */
export function withFirmware(
  query: URLSearchParams,
  firmware: Schemas["Firmware"],
  previous: Schemas["Firmware"] | null,
): URLSearchParams {
  const next = withParam(query, "Firmware", firmware.id);
  const targets = parseTargets(query);
  const isByModel = previous !== null && targets.kind === "filter" && targets.filter.ModelNumber === previous.modelNumber;
  return isByModel ? withParam(next, "ModelNumber", firmware.modelNumber) : next;
}

/** Return the query with the devices of the firmware's model, if no devices are chosen. */
export function withDefaultTargets(query: URLSearchParams, firmware: Schemas["Firmware"]): URLSearchParams {
  return parseTargets(query).kind === "none" ? withParam(query, "ModelNumber", firmware.modelNumber) : query;
}

/** Return the filter that finds these devices; null: there are too many ids for one request. */
export function buildTargetFilter(targets: Targets): Filter | null {
  if (targets.kind === "list") return targets.ids.length <= MAX_IDS ? { Ids: [...targets.ids] } : null;
  return targets.kind === "filter" ? targets.filter : {};
}

/** Return the query with exactly these devices; empty: without devices and filters, so that filters can be chosen. */
export function withDevices(query: URLSearchParams, ids: readonly string[]): URLSearchParams {
  const next = withoutParams(clearFilters(query), "Device", "Selection", "All");
  const selection = query.get("Selection") ?? undefined;
  for (const [name, value] of buildSelectionQuery(ids, selection)) next.append(name, value);
  return next;
}

/** Return the targets in the form of the REST request. */
export function buildTargets(targets: Targets): Schemas["Targets"] {
  if (targets.kind === "list") return { all: false, deviceIds: [...targets.ids] };
  if (targets.kind === "filter") return { all: false, filter: targets.filter };
  return { all: targets.kind === "all" };
}
