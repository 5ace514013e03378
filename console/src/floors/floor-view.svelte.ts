/** Visible part of a floor: conversion between meters and pixels of the map, panning and zooming. */
import type { Box, Point } from "./geometry";

const MIN_SCALE = 0.2;
const MAX_SCALE = 400;
/** Pixels around the floor when all of it is shown. */
const MARGIN = 24;

export class FloorView {
  /** Size of the map in pixels. */
  width = $state(0);
  height = $state(0);
  /** Pixels per meter. */
  scale = $state(1);
  /** Coordinates of the upper left corner of the map. */
  left = $state(0);
  top = $state(0);

  /** Set the size of the map, and keep its center. */
  resize(width: number, height: number): void {
    this.left -= (width - this.width) / 2 / this.scale;
    this.top += (height - this.height) / 2 / this.scale;
    this.width = width;
    this.height = height;
  }

  /** Show all of a floor. */
  fit(box: Box): void {
    const [width, depth] = [box.maxX - box.minX, box.maxY - box.minY];
    const space = [this.width - 2 * MARGIN, this.height - 2 * MARGIN] as const;
    this.scale = clampScale(Math.min(space[0] / width, space[1] / depth));
    this.left = (box.minX + box.maxX) / 2 - this.width / 2 / this.scale;
    this.top = (box.minY + box.maxY) / 2 + this.height / 2 / this.scale;
  }

  toPixels({ x, y }: Point): Point {
    return { x: (x - this.left) * this.scale, y: (this.top - y) * this.scale };
  }

  toMeters({ x, y }: Point): Point {
    return { x: this.left + x / this.scale, y: this.top - y / this.scale };
  }

  /** Move the content by pixels. */
  pan(right: number, down: number): void {
    this.left -= right / this.scale;
    this.top += down / this.scale;
  }

  /** Zoom around a pixel, by default around the center. */
  zoom(factor: number, around: Point = { x: this.width / 2, y: this.height / 2 }): void {
    const fixed = this.toMeters(around);
    this.scale = clampScale(this.scale * factor);
    this.left = fixed.x - around.x / this.scale;
    this.top = fixed.y + around.y / this.scale;
  }
}

function clampScale(scale: number): number {
  return Math.min(MAX_SCALE, Math.max(MIN_SCALE, scale));
}
