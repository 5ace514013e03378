/** Search sources. The service searches devices; of the other lists one page is loaded and searched here, and all pages
 * of sites. Gateways beyond that page are found as devices. */
import Building from "@lucide/svelte/icons/building-2";
import Chip from "@lucide/svelte/icons/cpu";
import Layers from "@lucide/svelte/icons/layers";
import Package from "@lucide/svelte/icons/package";
import Rollout from "@lucide/svelte/icons/refresh-cw";
import Antenna from "@lucide/svelte/icons/router";
import Search from "@lucide/svelte/icons/search";
import Tag from "@lucide/svelte/icons/tag";

import { fetchAllPages } from "../../api/all-pages";
import { type Schemas, api, requireBody } from "../../api/client";
import { findDevicesByName } from "../../api/device-search";
import { session } from "../../api/session.svelte";
import { en } from "../../text/en";
import { formatMac, parseDeviceId } from "../../text/format";
import { parseMac } from "../../text/mac";
import { modelText } from "../../text/versions";
import { type Entry, buildNavigation } from "../pages";

export interface SearchResult {
  readonly name: string;
  /** Detail that distinguishes results with the same name. */
  readonly detail: string;
  readonly isMono: boolean;
  readonly href: string;
  readonly icon: Entry["icon"];
}

const MAX_DEVICES = 8;
const MAX_ITEMS = 1000;
/** Number of jobs and firmware to search: users mostly look for recent ones. */
const MAX_RECENT = 200;

export async function searchDevices(text: string, signal: AbortSignal): Promise<readonly SearchResult[]> {
  const { items, nextToken } = await findDevicesByName(text, MAX_DEVICES, signal);
  const found = items.map((device) => ({
    name: device.friendlyName || formatMac(parseDeviceId(device.id)),
    detail: formatMac(parseDeviceId(device.id)),
    isMono: true,
    href: `/devices/${encodeURIComponent(device.id)}`,
    icon: Chip,
  }));
  if (nextToken === null) return found;
  const href = `/devices?FriendlyName=${encodeURIComponent(text)}`;
  return [...found, { name: en.shell.search.more(text), detail: "", isMono: false, href, icon: Search }];
}

export async function readGateways(): Promise<readonly Schemas["Gateway"][]> {
  return requireBody(await api.GET("/api/v1/gateways", { params: { query: { MaxResults: MAX_ITEMS } } })).items;
}

export async function readLabels(): Promise<readonly Schemas["Label"][]> {
  return requireBody(await api.GET("/api/v1/labels", { params: { query: { MaxResults: MAX_ITEMS } } })).items;
}

export function searchGateways(text: string, gateways: readonly Schemas["Gateway"][]): readonly SearchResult[] {
  const mac = parseMac(text);
  return gateways
    .filter((gateway) => (mac === null ? has(gateway.friendlyName, text) : gateway.mac === mac))
    .map((gateway) => ({
      name: gateway.friendlyName || formatMac(gateway.mac),
      detail: formatMac(gateway.mac),
      isMono: true,
      href: `/gateways/${encodeURIComponent(gateway.mac)}`,
      icon: Antenna,
    }));
}

export function searchLabels(text: string, labels: readonly Schemas["Label"][]): readonly SearchResult[] {
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

export async function readJobs(): Promise<readonly Schemas["Job"][]> {
  return requireBody(await api.GET("/api/v1/jobs", { params: { query: { MaxResults: MAX_RECENT } } })).items;
}

export async function readFirmware(): Promise<readonly Schemas["Firmware"][]> {
  return requireBody(await api.GET("/api/v1/firmware", { params: { query: { MaxResults: MAX_RECENT } } })).items;
}

export function searchJobs(text: string, jobs: readonly Schemas["Job"][]): readonly SearchResult[] {
  return jobs
    .filter(({ id, name }) => has(name, text) || id === text.toLowerCase())
    .map(({ id, name }) => ({ name, detail: id, isMono: true, href: `/jobs/${encodeURIComponent(id)}`, icon: Rollout }));
}

export function searchFirmware(text: string, firmware: readonly Schemas["Firmware"][]): readonly SearchResult[] {
  return firmware
    .filter(({ id, version }) => version.startsWith(text) || id === text.toLowerCase())
    .map(({ id, version, modelNumber }) => ({
      name: version,
      detail: modelText(modelNumber),
      isMono: false,
      href: `/firmware/${encodeURIComponent(id)}`,
      icon: Package,
    }));
}

export async function readSites(): Promise<readonly Schemas["Site"][]> {
  // The list is loaded once for all that the user types, so nothing cancels it.
  return fetchAllPages(async (token, signal) => {
    const query = { MaxResults: MAX_ITEMS, ...(token && { NextToken: token }) };
    // openapi-fetch widens the corners of areas to lists of any length.
    return requireBody(await api.GET("/api/v1/sites", { params: { query }, signal })) as Schemas["SitePage"];
  }, new AbortController().signal);
}

/** Search sites by name, and their floors by theirs. */
export function searchSites(text: string, sites: readonly Schemas["Site"][]): readonly SearchResult[] {
  return sites.flatMap(({ id, name, floors }) => {
    const href = `/sites/${encodeURIComponent(id)}`;
    const found = has(name, text)
      ? [{ name, detail: en.sites.floorCount(floors.length), isMono: false, href, icon: Building }]
      : [];
    const named = floors
      .map(({ floor, name: own }) => ({ floor, name: en.sites.floorName(floor, own) }))
      .filter((each) => has(each.name, text))
      .map((each) => ({ name: each.name, detail: name, isMono: false, href: `${href}?floor=${each.floor}`, icon: Layers }));
    return [...found, ...named];
  });
}

export function searchPages(text: string): readonly SearchResult[] {
  return buildNavigation((role) => session.hasRole(role))
    .flatMap((group) => group.entries)
    .filter((entry) => has(entry.name, text))
    .map(({ name, path, icon }) => ({ name, detail: "", isMono: false, href: path, icon }));
}

function has(name: string, part: string): boolean {
  return name.toLowerCase().includes(part.toLowerCase());
}
