/** Which reports are wanted, as the address of the page says it. */
import type { LiveFilter } from "../../../live/socket.svelte";
import { withoutParams } from "../../../query";
import { parseMac } from "../../../text/mac";
import { KINDS, type Kind, type Report } from "./report";

export interface Wanted {
  readonly kinds: ReadonlySet<Kind>;
  /** MACs. */
  readonly devices: readonly string[];
  readonly gateways: readonly string[];
}

/** So many of each can be chosen: an address can be kept and passed on. */
export const MOST = 20;

export function wantedIn(query: URLSearchParams): Wanted {
  const kinds = new Set(query.getAll("Kind"));
  return {
    kinds: new Set(KINDS.filter((kind) => kinds.has(kind))),
    devices: macsIn(query.getAll("Ids")),
    gateways: macsIn(query.getAll("Gateway")),
  };
}

/** The same address with something else wanted. */
export function restated(query: URLSearchParams, wanted: Wanted): URLSearchParams {
  const changed = withoutParams(query, "Kind", "Ids", "Gateway");
  for (const kind of wanted.kinds) changed.append("Kind", kind);
  for (const mac of wanted.devices) changed.append("Ids", `bmac-${mac}`);
  for (const mac of wanted.gateways) changed.append("Gateway", mac);
  return changed;
}

/** What the service is asked to tell. It knows no kinds of reports: those are told apart here. */
export function filterOf({ devices, gateways }: Wanted): LiveFilter {
  return {
    Types: ["report"],
    ...(devices.length > 0 && { Ids: devices.map((mac) => `bmac-${mac}`) }),
    ...(gateways.length > 0 && { Gateway: gateways }),
  };
}

export function fits({ kinds, devices, gateways }: Wanted, report: Report): boolean {
  return (
    (kinds.size === 0 || kinds.has(report.kind)) &&
    (devices.length === 0 || devices.includes(report.device)) &&
    (gateways.length === 0 || gateways.includes(report.gateway))
  );
}

function macsIn(texts: readonly string[]): readonly string[] {
  const macs = texts.map(parseMac).filter((mac) => mac !== null);
  return [...new Set(macs)].slice(0, MOST);
}
