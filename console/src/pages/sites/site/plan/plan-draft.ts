/** Plan as it is typed in a form: a picture and two points whose pixels and meters are known. */
import type { Schemas } from "../../../../api/client";
import { type Box, measureDistance } from "../../../../floors/geometry";
import { formatField, parseMeters } from "../../../../floors/meters";

export interface PointDraft {
  px: string;
  py: string;
  x: string;
  y: string;
}

export interface PictureSize {
  readonly width: number;
  readonly height: number;
}

export const MAX_PLAN_BYTES = 20 * 1024 * 1024;
const TYPES: readonly string[] = ["image/png", "image/jpeg", "image/svg+xml"];
const MIN_PIXELS = 1;
const MIN_METERS = 0.1;
/** Length of an SVG that does not depend on where it is shown. */
const ABSOLUTE = /^\s*\d[\d.]*(px|mm|cm|in|pt|pc)?\s*$/;

export function isPlanType(file: File): boolean {
  return TYPES.includes(file.type);
}

/** Return two opposite corners of a picture, as wide as the floor. They are a good guess for cropped plans. */
export function guessPoints({ width, height }: PictureSize, { minX, minY, maxX, maxY }: Box): PointDraft[] {
  return [
    { px: "0", py: formatField(height), x: formatField(minX), y: formatField(minY) },
    { px: formatField(width), py: "0", x: formatField(maxX), y: formatField(maxY) },
  ];
}

/** Return the numbers of two points; null if a field is no number, or if the points are too near to each other. */
export function parsePoints(drafts: readonly PointDraft[]): readonly Schemas["ReferencePoint"][] | null {
  const [one, other] = drafts.map(parsePoint);
  if (!one || !other) return null;
  const isApart =
    Math.hypot(one.px - other.px, one.py - other.py) >= MIN_PIXELS && measureDistance(one, other) >= MIN_METERS;
  return isApart ? [one, other] : null;
}

function parsePoint(draft: PointDraft): Schemas["ReferencePoint"] | null {
  const [px, py, x, y] = [draft.px, draft.py, draft.x, draft.y].map(parseMeters);
  return typeof px === "number" && typeof py === "number" && typeof x === "number" && typeof y === "number"
    ? { px, py, x, y }
    : null;
}

/** Return the size of a picture in pixels as the service counts them. An SVG without a size of its own has that of its
 * viewBox; browsers report an arbitrary one. */
export async function measurePicture(file: Blob, image: HTMLImageElement): Promise<PictureSize> {
  const natural = { width: image.naturalWidth, height: image.naturalHeight };
  if (file.type !== "image/svg+xml") return natural;
  const root = new DOMParser().parseFromString(await file.text(), "image/svg+xml").documentElement;
  if (["width", "height"].some((name) => ABSOLUTE.test(root.getAttribute(name) ?? ""))) return natural;
  const [, , width = 0, height = 0] = (root.getAttribute("viewBox") ?? "").trim().split(/[\s,]+/).map(Number);
  return width > 0 && height > 0 ? { width, height } : natural;
}
