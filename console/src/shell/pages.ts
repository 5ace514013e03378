/** Pages of the console: paths, components and navigation entries. */
import Antenna from "@lucide/svelte/icons/router";
import Bell from "@lucide/svelte/icons/bell";
import BellRing from "@lucide/svelte/icons/bell-ring";
import Braces from "@lucide/svelte/icons/braces";
import Building from "@lucide/svelte/icons/building-2";
import Chip from "@lucide/svelte/icons/cpu";
import Gauge from "@lucide/svelte/icons/layout-dashboard";
import Key from "@lucide/svelte/icons/key-round";
import Letters from "@lucide/svelte/icons/messages-square";
import Network from "@lucide/svelte/icons/network";
import Package from "@lucide/svelte/icons/package";
import People from "@lucide/svelte/icons/users";
import Rejected from "@lucide/svelte/icons/file-x";
import Rollout from "@lucide/svelte/icons/refresh-cw";
import Scroll from "@lucide/svelte/icons/scroll-text";
import Tags from "@lucide/svelte/icons/tags";
import type { Component } from "svelte";

import type { Role } from "../api/session.svelte";
import { en } from "../text/en";

export type Params = Readonly<Record<string, string>>;

/** Component of a page. The parameters of its path are its props: `/devices/:id` renders `<Device id=… />`. */
export type View = Component<never>;

export interface Page {
  /** Path; segments that begin with a colon are parameters. */
  readonly path: string;
  /** Load the component: at once for the first page, soon after for the others. */
  readonly load: () => Promise<{ default: View }>;
  /** Required role; undefined: every user. */
  readonly role?: Role;
  /** Whether the page is public and needs no sign-in. */
  readonly isOpen?: true;
}

export interface Entry {
  readonly path: string;
  readonly name: string;
  /** Key that opens the page after `g`. */
  readonly key: string;
  readonly icon: Component<{ size?: number; "aria-hidden"?: "true" }>;
  /** Required role; undefined: every user. */
  readonly role?: Role;
  /** Whether it is in the bottom bar of a phone; the others are in its menu. */
  readonly isNear?: true;
}

export interface Group {
  readonly name: string;
  readonly entries: readonly Entry[];
}

export const pages: readonly Page[] = [
  { path: "/", load: () => import("../pages/overview/Overview.svelte") },
  { path: "/alarms", load: () => import("../pages/alarms/Alarms.svelte") },
  { path: "/alarms/:id", load: () => import("../pages/alarms/alarm/Alarm.svelte") },
  { path: "/devices", load: () => import("../pages/devices/Devices.svelte") },
  { path: "/devices/:id", load: () => import("../pages/device/Device.svelte") },
  { path: "/gateways", load: () => import("../pages/gateways/Gateways.svelte") },
  { path: "/gateways/:mac", load: () => import("../pages/gateways/Gateway.svelte") },
  { path: "/topology", load: () => import("../pages/topology/Topology.svelte") },
  { path: "/sites", load: () => import("../pages/sites/Sites.svelte") },
  { path: "/sites/:id", load: () => import("../pages/sites/site/Site.svelte") },
  { path: "/labels", load: () => import("../pages/labels/Labels.svelte") },
  { path: "/jobs", load: () => import("../pages/jobs/Jobs.svelte") },
  { path: "/jobs/new", load: () => import("../pages/jobs/new/NewJob.svelte"), role: "operator" },
  { path: "/jobs/:id", load: () => import("../pages/jobs/job/Job.svelte") },
  { path: "/firmware", load: () => import("../pages/firmware/Catalogue.svelte") },
  { path: "/firmware/:id", load: () => import("../pages/firmware/Firmware.svelte") },
  { path: "/messages", load: () => import("../pages/messages/Messages.svelte") },
  { path: "/rejects", load: () => import("../pages/rejects/Rejects.svelte") },
  { path: "/settings/channels", load: () => import("../pages/channels/Channels.svelte") },
  { path: "/people", load: () => import("../pages/people/People.svelte"), role: "admin" },
  { path: "/keys", load: () => import("../pages/keys/Keys.svelte"), role: "admin" },
  { path: "/audit", load: () => import("../pages/audit/Audit.svelte"), role: "admin" },
  { path: "/api/docs", load: () => import("../pages/api/Api.svelte"), isOpen: true },
];

const groups: readonly Group[] = [
  {
    name: en.shell.nav.fleet,
    entries: [
      { path: "/", name: en.shell.nav.overview, key: "o", icon: Gauge, isNear: true },
      { path: "/alarms", name: en.shell.nav.alarms, key: "e", icon: Bell },
      { path: "/devices", name: en.shell.nav.devices, key: "d", icon: Chip, isNear: true },
      { path: "/gateways", name: en.shell.nav.gateways, key: "g", icon: Antenna, isNear: true },
      { path: "/topology", name: en.shell.nav.topology, key: "t", icon: Network },
      { path: "/sites", name: en.shell.nav.sites, key: "s", icon: Building },
      { path: "/labels", name: en.shell.nav.labels, key: "l", icon: Tags },
    ],
  },
  {
    name: en.shell.nav.updates,
    entries: [
      { path: "/jobs", name: en.shell.nav.jobs, key: "j", icon: Rollout, isNear: true },
      { path: "/firmware", name: en.shell.nav.firmware, key: "f", icon: Package },
    ],
  },
  {
    name: en.shell.nav.tools,
    entries: [
      { path: "/messages", name: en.shell.nav.messages, key: "m", icon: Letters },
      { path: "/rejects", name: en.shell.nav.rejects, key: "r", icon: Rejected },
      { path: "/settings/channels", name: en.shell.nav.channels, key: "n", icon: BellRing },
      { path: "/api/docs", name: en.shell.nav.api, key: "i", icon: Braces },
    ],
  },
  {
    name: en.shell.nav.admin,
    entries: [
      { path: "/people", name: en.shell.nav.people, key: "p", icon: People, role: "admin" },
      { path: "/keys", name: en.shell.nav.keys, key: "k", icon: Key, role: "admin" },
      { path: "/audit", name: en.shell.nav.audit, key: "a", icon: Scroll, role: "admin" },
    ],
  },
];

/** Return the navigation groups for a role. */
export function buildNavigation(may: (role: Role) => boolean): readonly Group[] {
  return groups
    .map(({ name, entries }) => ({ name, entries: entries.filter(({ role }) => role === undefined || may(role)) }))
    .filter(({ entries }) => entries.length > 0);
}

export interface MatchedPage {
  readonly page: Page;
  readonly params: Params;
}

/** Return the page of a path and its parameters; null if there is none. */
export function findPage(path: string): MatchedPage | null {
  const segments = path.split("/");
  for (const page of pages) {
    const params = matchPath(page.path.split("/"), segments);
    if (params) return { page, params };
  }
  return null;
}

/** Return whether a path is that of an entry, or below it. */
export function isWithin(path: string, entry: string): boolean {
  return path === entry || (entry !== "/" && path.startsWith(`${entry}/`));
}

function matchPath(pattern: readonly string[], given: readonly string[]): Params | null {
  if (pattern.length !== given.length) return null;
  const params: Record<string, string> = {};
  for (const [index, part] of pattern.entries()) {
    const found = given[index] ?? "";
    if (part.startsWith(":")) {
      if (found === "") return null;
      params[part.slice(1)] = decodeSegment(found);
    } else if (part !== found) return null;
  }
  return params;
}

function decodeSegment(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a stray percent sign: the page reports that nothing has this id
  }
}
