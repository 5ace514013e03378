/** The pages of the console: where each is, what it is called, and what draws it. */
import Antenna from "@lucide/svelte/icons/router";
import Chip from "@lucide/svelte/icons/cpu";
import Gauge from "@lucide/svelte/icons/layout-dashboard";
import Rejected from "@lucide/svelte/icons/file-x";
import Tags from "@lucide/svelte/icons/tags";
import type { Component } from "svelte";

import { en } from "../text/en";

export type Params = Readonly<Record<string, string>>;

/** What draws a page. It is given what its path names: `/devices/:id` draws `<Device id=… />`. */
export type View = Component<never>;

export interface Page {
  /** Parts that begin with a colon are named, and given to the view as they are called. */
  readonly path: string;
  /** Fetches what draws it: for the first page at once, for the others soon after. */
  readonly load: () => Promise<{ default: View }>;
}

export interface Entry {
  readonly path: string;
  readonly name: string;
  /** The letter that leads here after `g`. */
  readonly key: string;
  readonly icon: Component<{ size?: number; "aria-hidden"?: "true" }>;
}

export interface Group {
  readonly name: string;
  readonly entries: readonly Entry[];
}

export const pages: readonly Page[] = [
  { path: "/", load: () => import("../pages/overview/Overview.svelte") },
  { path: "/devices", load: () => import("../pages/devices/Devices.svelte") },
  { path: "/devices/:id", load: () => import("../pages/device/Device.svelte") },
  { path: "/gateways", load: () => import("../pages/gateways/Gateways.svelte") },
  { path: "/gateways/:mac", load: () => import("../pages/gateways/Gateway.svelte") },
  { path: "/labels", load: () => import("../pages/labels/Labels.svelte") },
  { path: "/rejects", load: () => import("../pages/rejects/Rejects.svelte") },
];

/** What the navigation offers. */
export const navigation: readonly Group[] = [
  {
    name: en.shell.nav.fleet,
    entries: [
      { path: "/", name: en.shell.nav.overview, key: "o", icon: Gauge },
      { path: "/devices", name: en.shell.nav.devices, key: "d", icon: Chip },
      { path: "/gateways", name: en.shell.nav.gateways, key: "g", icon: Antenna },
    ],
  },
  {
    name: en.shell.nav.admin,
    entries: [
      { path: "/labels", name: en.shell.nav.labels, key: "l", icon: Tags },
      { path: "/rejects", name: en.shell.nav.rejects, key: "r", icon: Rejected },
    ],
  },
];

export interface Found {
  readonly page: Page;
  readonly params: Params;
}

/** The page at a path, and what the path names. */
export function pageAt(path: string): Found | null {
  const given = path.split("/");
  for (const page of pages) {
    const params = match(page.path.split("/"), given);
    if (params) return { page, params };
  }
  return null;
}

/** Whether a path is that of an entry, or below it. */
export function isWithin(path: string, entry: string): boolean {
  return path === entry || (entry !== "/" && path.startsWith(`${entry}/`));
}

function match(pattern: readonly string[], given: readonly string[]): Params | null {
  if (pattern.length !== given.length) return null;
  const params: Record<string, string> = {};
  for (const [index, part] of pattern.entries()) {
    const found = given[index] ?? "";
    if (part.startsWith(":")) {
      if (found === "") return null;
      params[part.slice(1)] = decoded(found);
    } else if (part !== found) return null;
  }
  return params;
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a stray percent sign: nothing is called so, and the page says that
  }
}
