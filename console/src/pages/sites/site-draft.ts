/** Site as it is typed in a form. */
import type { Schemas } from "../../api/client";
import { formatField, parseMeters } from "../../floors/meters";
import { en } from "../../text/en";

export interface FloorDraft {
  /** Identity of the row while the number is being typed. */
  readonly key: number;
  number: string;
  name: string;
  width: string;
  depth: string;
  minX: string;
  minY: string;
  readonly walkable: Schemas["NewFloor"]["walkable"];
}

export interface SiteDraft {
  name: string;
  floors: FloorDraft[];
}

export type FloorFaults = Partial<Record<"number" | "width" | "depth" | "minX" | "minY", string>>;

const MAX_NAME_LENGTH = 128;
const LOWEST_FLOOR = -20;
const HIGHEST_FLOOR = 200;
const MIN_EXTENT = 1;
const MAX_EXTENT = 2000;
const MAX_COORDINATE = 10_000;
const words = en.sites.form.faults;
let lastKey = 0;

/** Return a draft of a site; without a site, of a new one with a ground floor. */
export function createDraft(site: Schemas["Site"] | null): SiteDraft {
  if (site === null) return { name: "", floors: [createFloorDraft(0)] };
  const floors = site.floors.map((floor) => ({
    key: ++lastKey,
    number: String(floor.floor),
    name: floor.name ?? "",
    width: formatField(floor.maxX - floor.minX),
    depth: formatField(floor.maxY - floor.minY),
    minX: formatField(floor.minX),
    minY: formatField(floor.minY),
    walkable: floor.walkable ?? null,
  }));
  return { name: site.name, floors };
}

/** Return an empty floor, with the size of another one. */
export function createFloorDraft(number: number, like?: FloorDraft): FloorDraft {
  return {
    key: ++lastKey,
    number: String(number),
    name: "",
    width: like?.width ?? "",
    depth: like?.depth ?? "",
    minX: like?.minX ?? "0",
    minY: like?.minY ?? "0",
    walkable: null,
  };
}

/** Return the number for the next floor: one above the highest. */
export function nextFloorNumber(draft: SiteDraft): number {
  return Math.max(-1, ...draft.floors.map(({ number }) => parseFloorNumber(number) ?? -1)) + 1;
}

export function checkName(draft: SiteDraft): string | null {
  const length = [...draft.name.trim()].length;
  return length >= 1 && length <= MAX_NAME_LENGTH ? null : words.name;
}

export function checkFloor(draft: SiteDraft, floor: FloorDraft): FloorFaults {
  const number = parseFloorNumber(floor.number);
  const isTwice = draft.floors.some((other) => other.key !== floor.key && parseFloorNumber(other.number) === number);
  return {
    ...(number === null ? { number: words.number } : isTwice && { number: words.twice }),
    ...(!isWithin(floor.width, MIN_EXTENT, MAX_EXTENT) && { width: words.extent }),
    ...(!isWithin(floor.depth, MIN_EXTENT, MAX_EXTENT) && { depth: words.extent }),
    ...(!isWithin(floor.minX, -MAX_COORDINATE, MAX_COORDINATE) && { minX: words.coordinate }),
    ...(!isWithin(floor.minY, -MAX_COORDINATE, MAX_COORDINATE) && { minY: words.coordinate }),
  };
}

/** Return the body of a request for a draft without faults. */
export function buildSite(draft: SiteDraft): Schemas["NewSite"] {
  const floors = draft.floors.map((floor) => {
    const [minX, minY] = [parseMeters(floor.minX) ?? 0, parseMeters(floor.minY) ?? 0];
    return {
      floor: parseFloorNumber(floor.number) ?? 0,
      name: floor.name.trim() || null,
      minX,
      minY,
      maxX: minX + (parseMeters(floor.width) ?? 0),
      maxY: minY + (parseMeters(floor.depth) ?? 0),
      walkable: floor.walkable ?? null,
    };
  });
  return { name: draft.name.trim(), floors };
}

function parseFloorNumber(text: string): number | null {
  if (!/^-?\d{1,3}$/.test(text.trim())) return null;
  const number = Number(text);
  return number >= LOWEST_FLOOR && number <= HIGHEST_FLOOR ? number : null;
}

function isWithin(text: string, least: number, most: number): boolean {
  const value = parseMeters(text);
  return value !== null && value >= least && value <= most;
}
