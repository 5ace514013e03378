/** Lookup of devices and gateways by name. */
import { type Schemas, api, requireBody } from "../../api/client";
import { findDevicesByName } from "../../api/device-search";
import { formatMac, parseDeviceId } from "../../text/format";

export interface DeviceMatch {
  readonly mac: string;
  readonly name: string;
}

export type Lookup = (text: string, signal: AbortSignal) => Promise<readonly DeviceMatch[]>;

const MAX_MATCHES = 12;
const MAX_GATEWAYS = 1000;

export const findDevices: Lookup = async (text, signal) => {
  const { items } = await findDevicesByName(text, MAX_MATCHES, signal);
  return items.map(({ id, friendlyName }) => toMatch(parseDeviceId(id), friendlyName));
};

/** Create a lookup of gateways. The list is loaded once, at the first search; gateways beyond its limit are found by
 * MAC only. */
export function createGatewayLookup(): Lookup {
  let all: readonly Schemas["Gateway"][] | null = null;
  return async (text, signal) => {
    const query = { MaxResults: MAX_GATEWAYS };
    all ??= requireBody(await api.GET("/api/v1/gateways", { params: { query }, signal })).items;
    const part = text.trim().toLowerCase();
    const matching = all.filter(({ friendlyName }) => friendlyName.toLowerCase().includes(part));
    return matching.slice(0, MAX_MATCHES).map(({ mac, friendlyName }) => toMatch(mac, friendlyName));
  };
}

function toMatch(mac: string, name: string): DeviceMatch {
  return { mac, name: name || formatMac(mac) };
}
