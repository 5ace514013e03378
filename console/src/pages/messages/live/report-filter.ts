/** LiveFilter of the live reports, stored in the query of the URL. */
import type { LiveFilter } from "../../../live/socket.svelte";
import { withoutParams } from "../../../query";
import { parseMac } from "../../../text/mac";
import { KINDS, type Kind, type Report } from "./report";

/** Selected reports; an empty list or set selects all. */
export interface ReportFilter {
  readonly kinds: ReadonlySet<Kind>;
  /** MACs of devices. */
  readonly devices: readonly string[];
  /** MACs of gateways. */
  readonly gateways: readonly string[];
}

/** Maximum number of devices and of gateways: a URL must stay short enough to share. */
export const MAX_CHOSEN = 20;

export function parseFilter(query: URLSearchParams): ReportFilter {
  const kinds = new Set(query.getAll("Kind"));
  return {
    kinds: new Set(KINDS.filter((kind) => kinds.has(kind))),
    devices: parseMacs(query.getAll("Ids")),
    gateways: parseMacs(query.getAll("Gateway")),
  };
}

/** Return the query with another filter. */
export function withFilter(query: URLSearchParams, filter: ReportFilter): URLSearchParams {
  const changed = withoutParams(query, "Kind", "Ids", "Gateway");
  for (const kind of filter.kinds) changed.append("Kind", kind);
  for (const mac of filter.devices) changed.append("Ids", `bmac-${mac}`);
  for (const mac of filter.gateways) changed.append("Gateway", mac);
  return changed;
}

/** Build the filter of the subscription. The service cannot filter by kind: the console does. */
export function buildSubscription({ devices, gateways }: ReportFilter): LiveFilter {
  return {
    Types: ["report"],
    ...(devices.length > 0 && { Ids: devices.map((mac) => `bmac-${mac}`) }),
    ...(gateways.length > 0 && { Gateway: gateways }),
  };
}

export function matches({ kinds, devices, gateways }: ReportFilter, report: Report): boolean {
  return (
    (kinds.size === 0 || kinds.has(report.kind)) &&
    (devices.length === 0 || devices.includes(report.device)) &&
    (gateways.length === 0 || gateways.includes(report.gateway))
  );
}

function parseMacs(texts: readonly string[]): readonly string[] {
  const macs = texts.map(parseMac).filter((mac) => mac !== null);
  return [...new Set(macs)].slice(0, MAX_CHOSEN);
}
