/** Part of a drawing that is visible: pure functions of scale and offset. */
import type { Box } from "./layouts";

export interface Camera {
  /** Pixels of the screen per pixel of the drawing. */
  readonly scale: number;
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

/** Return the camera that shows the whole drawing. */
export function fitBox(box: Box, { width, height }: Size): Camera {
  const labels = Math.min(LABEL_MARGIN, width / 3);
  const [room, tall] = [Math.max(1, width - 2 * MARGIN - labels), Math.max(1, height - 2 * MARGIN)];
  const scale = clampScale(Math.min(room / Math.max(1, box.right - box.left), tall / Math.max(1, box.bottom - box.top), MAX_FIT));
  return {
    scale,
    x: MARGIN + (room - (box.left + box.right) * scale) / 2,
    y: (height - (box.top + box.bottom) * scale) / 2,
  };
}

/** Zoom by a factor; the given point of the screen stays where it is. */
export function zoomAt(camera: Camera, factor: number, x: number, y: number): Camera {
  const scale = clampScale(camera.scale * factor);
  const ratio = scale / camera.scale;
  return { scale, x: x - (x - camera.x) * ratio, y: y - (y - camera.y) * ratio };
}

/** Center a point of the drawing, large enough to read. */
export function centerOn(camera: Camera, x: number, y: number, { width, height }: Size): Camera {
  const scale = Math.max(camera.scale, 0.8);
  return { scale, x: width / 2 - x * scale, y: height / 2 - y * scale };
}

function clampScale(scale: number): number {
  return Math.min(Math.max(scale, MIN_SCALE), MAX_SCALE);
}
