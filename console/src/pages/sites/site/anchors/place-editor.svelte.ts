/** Place of a device that is being entered, with fields or on the plan. */
import { api } from "../../../../api/client";
import { fetchDeviceNames } from "../../../../api/device-names.svelte";
import type { Point } from "../../../../floors/geometry";
import { formatField, parseMeters } from "../../../../floors/meters";
import { formatMac, parseDeviceId } from "../../../../text/format";

export interface PlacedDevice {
  readonly id: string;
  readonly name: string;
}

export class PlaceEditor {
  /** Device whose place is being entered; null if none is. */
  device = $state.raw<PlacedDevice | null>(null);
  x = $state("");
  y = $state("");
  readonly point = $derived(parsePoint(this.x, this.y));

  constructor(
    readonly siteId: string,
    readonly getFloor: () => number,
  ) {}

  /** Begin to enter the place of a device. */
  open(device: PlacedDevice, point: Point | null): void {
    this.device = device;
    if (point === null) this.x = this.y = "";
    else this.pick(point);
  }

  /** Begin to enter the place of a device by its id. */
  async openDevice(id: string): Promise<void> {
    const mac = parseDeviceId(id);
    const names = await fetchDeviceNames([id]).catch(() => new Map<string, string>());
    this.open({ id, name: names.get(id) || formatMac(mac) }, null);
  }

  close(): void {
    this.device = null;
  }

  /** Fill in a point of the plan. */
  pick(point: Point): void {
    this.x = formatField(point.x);
    this.y = formatField(point.y);
  }

  /** Set the place of a device on a floor, by default on the one that is shown. */
  async set(device: string, { x, y }: Point, floor = this.getFloor()): Promise<void> {
    const body = { site: this.siteId, floor, x: roundMeters(x), y: roundMeters(y) };
    await api.PUT("/api/v1/devices/{device_id}/place", { params: { path: { device_id: device } }, body });
  }
}

/** Return the point of two fields; null if one of them is no number. */
export function parsePoint(x: string, y: string): Point | null {
  const [right, up] = [parseMeters(x), parseMeters(y)];
  return right === null || up === null ? null : { x: right, y: up };
}

/** Round a coordinate of the plan to the centimeter: fingers and mice point no more precisely. */
export function roundMeters(value: number): number {
  return Math.round(value * 100) / 100;
}
