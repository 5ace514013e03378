/** Part of a drawing that is visible: pure functions of scale and offset. */
import type { Box } from "./layouts";

export interface Camera {
  /** Pixels of the screen per pixel of the drawing. */
  readonly scale: number;
  /** Least scale across: the levels of a tall tree keep a distance. */
  readonly minScaleX: number;
  /** Position of the origin of the drawing on the screen. */
  readonly x: number;
  readonly y: number;
}

export interface Size {
  readonly width: number;
  readonly height: number;
}

const MIN_SCALE = 0.01;
const MAX_SCALE = 4;
/** Largest scale of a drawing that is fitted: a few nodes are not blown up. */
const MAX_FIT = 1.25;
/** Free pixels around a fitted drawing; on the right is the text of the outermost nodes. */
const MARGIN = 28;
const LABEL_MARGIN = 170;
/** Scale at which names can be read, and the least one at which a point counts as shown. */
const READABLE_SCALE = 0.8;
const SHOWN_SCALE = 0.35;

/** Return the scale across, which may be larger than that from top to bottom. */
export function getScaleX({ scale, minScaleX }: Camera): number {
  return Math.max(scale, minScaleX);
}

/** Return the camera that shows the whole drawing, stretched to the width if that is allowed. */
export function fitBox(box: Box, { width, height }: Size, isStretched: boolean): Camera {
  const labels = Math.min(LABEL_MARGIN, width / 3);
  const [room, tall] = [Math.max(1, width - 2 * MARGIN - labels), Math.max(1, height - 2 * MARGIN)];
  const fitX = Math.min(room / Math.max(1, box.right - box.left), MAX_FIT);
  const scale = clampScale(Math.min(fitX, tall / Math.max(1, box.bottom - box.top)));
  const minScaleX = isStretched ? Math.min(fitX, 1) : 0;
  return {
    scale,
    minScaleX,
    x: MARGIN + (room - (box.left + box.right) * Math.max(scale, minScaleX)) / 2,
    y: (height - (box.top + box.bottom) * scale) / 2,
  };
}

/** Zoom by a factor; the given point of the screen stays where it is. */
export function zoomAt(camera: Camera, factor: number, x: number, y: number): Camera {
  const scale = clampScale(camera.scale * factor);
  const next = { ...camera, scale };
  const [ratioX, ratioY] = [getScaleX(next) / getScaleX(camera), scale / camera.scale];
  return { ...next, x: x - (x - camera.x) * ratioX, y: y - (y - camera.y) * ratioY };
}

/** Center a point of the drawing, large enough to read. */
export function centerOn(camera: Camera, x: number, y: number, { width, height }: Size): Camera {
  const next = { ...camera, scale: Math.max(camera.scale, READABLE_SCALE) };
  return { ...next, x: width / 2 - x * getScaleX(next), y: height / 2 - y * next.scale };
}

/** Return whether a point of the drawing is on the screen, and large enough to recognize. */
export function isShown(camera: Camera, x: number, y: number, { width, height }: Size): boolean {
  const [left, top] = [x * getScaleX(camera) + camera.x, y * camera.scale + camera.y];
  return camera.scale >= SHOWN_SCALE && left > MARGIN && top > MARGIN && left < width - MARGIN && top < height - MARGIN;
}

function clampScale(scale: number): number {
  return Math.min(Math.max(scale, MIN_SCALE), MAX_SCALE);
}
