/** Devices and gateways that are found by what people call them. */
import { type Schemas, api, requireBody } from "../../api/client";
import { findDevicesByName } from "../../api/device-search";
import { formatMac, parseDeviceId } from "../../text/format";

export interface Found {
  readonly mac: string;
  readonly name: string;
}

export type Find = (text: string, signal: AbortSignal) => Promise<readonly Found[]>;

const MOST = 12;
const OFFERED = 1000;

export const findDevices: Find = async (text, signal) => {
  const { items } = await findDevicesByName(text, MOST, signal);
  return items.map(({ id, friendlyName }) => foundAs(parseDeviceId(id), friendlyName));
};

/** Finds gateways. They are read once, when somebody first looks for one; beyond so many one types the MAC. */
export function gatewayFinder(): Find {
  let all: readonly Schemas["Gateway"][] | null = null;
  return async (text, signal) => {
    const query = { MaxResults: OFFERED };
    all ??= requireBody(await api.GET("/api/v1/gateways", { params: { query }, signal })).items;
    const part = text.trim().toLowerCase();
    const called = all.filter(({ friendlyName }) => friendlyName.toLowerCase().includes(part));
    return called.slice(0, MOST).map(({ mac, friendlyName }) => foundAs(mac, friendlyName));
  };
}

function foundAs(mac: string, name: string): Found {
  return { mac, name: name || formatMac(mac) };
}
