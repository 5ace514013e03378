/** Where things are found by name. The service looks for devices; of gateways and labels it is asked once for as many as
 * it tells at a time, and the rest of the work is done here. Gateways beyond that are found as devices, which they are too. */
import Chip from "@lucide/svelte/icons/cpu";
import Antenna from "@lucide/svelte/icons/router";
import Search from "@lucide/svelte/icons/search";
import Tag from "@lucide/svelte/icons/tag";

import { type Schemas, api, bodyOf } from "../../api/client";
import { en } from "../../text/en";
import { address, macOf } from "../../text/format";
import { macIn } from "../../text/mac";
import { type Entry, navigation } from "../pages";

export interface Choice {
  readonly name: string;
  /** What tells it from others of the same name. */
  readonly detail: string;
  readonly isMono: boolean;
  readonly href: string;
  readonly icon: Entry["icon"];
}

const DEVICES = 8;
const MOST = 1000;

export async function devicesLike(text: string, signal: AbortSignal): Promise<readonly Choice[]> {
  const mac = macIn(text);
  const query = mac === null ? { FriendlyName: text, MaxResults: DEVICES } : { Ids: [`bmac-${mac}`] };
  const { items, nextToken } = bodyOf(await api.GET("/api/v1/devices", { params: { query }, signal }));
  const found = items.map((device) => ({
    name: device.friendlyName || address(macOf(device.id)),
    detail: address(macOf(device.id)),
    isMono: true,
    href: `/devices/${encodeURIComponent(device.id)}`,
    icon: Chip,
  }));
  if (nextToken === null) return found;
  const href = `/devices?FriendlyName=${encodeURIComponent(text)}`;
  return [...found, { name: en.shell.find.more(text), detail: "", isMono: false, href, icon: Search }];
}

export async function readGateways(): Promise<readonly Schemas["Gateway"][]> {
  return bodyOf(await api.GET("/api/v1/gateways", { params: { query: { MaxResults: MOST } } })).items;
}

export async function readLabels(): Promise<readonly Schemas["Label"][]> {
  return bodyOf(await api.GET("/api/v1/labels", { params: { query: { MaxResults: MOST } } })).items;
}

export function gatewaysLike(text: string, gateways: readonly Schemas["Gateway"][]): readonly Choice[] {
  const mac = macIn(text);
  return gateways
    .filter((gateway) => (mac === null ? has(gateway.friendlyName, text) : gateway.mac === mac))
    .map((gateway) => ({
      name: gateway.friendlyName || address(gateway.mac),
      detail: address(gateway.mac),
      isMono: true,
      href: `/gateways/${encodeURIComponent(gateway.mac)}`,
      icon: Antenna,
    }));
}

export function labelsLike(text: string, labels: readonly Schemas["Label"][]): readonly Choice[] {
  return labels
    .filter(({ label }) => has(label, text))
    .map(({ label, deviceCount }) => ({
      name: label,
      detail: en.devices.counted(deviceCount),
      isMono: false,
      href: `/devices?Label=${encodeURIComponent(label)}`,
      icon: Tag,
    }));
}

export function pagesLike(text: string): readonly Choice[] {
  return navigation
    .flatMap((group) => group.entries)
    .filter((entry) => has(entry.name, text))
    .map(({ name, path, icon }) => ({ name, detail: "", isMono: false, href: path, icon }));
}

function has(name: string, part: string): boolean {
  return name.toLowerCase().includes(part.toLowerCase());
}
