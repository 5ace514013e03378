/** Places of devices on a site: set by dragging, or entered with fields and on the plan. */
import { api, describeError } from "../../../../api/client";
import { fetchDeviceNames } from "../../../../api/device-names.svelte";
import { toasts } from "../../../../components/toasts.svelte";
import type { Point } from "../../../../floors/geometry";
import { formatField, formatMeters, parseMeters } from "../../../../floors/meters";
import { en } from "../../../../text/en";
import { formatMac, parseDeviceId } from "../../../../text/format";
import type { SiteData } from "../site-data.svelte";
import type { SiteFloors } from "../site-floors.svelte";

export interface PlacedDevice {
  readonly id: string;
  readonly name: string;
}

interface FloorPoint extends Point {
  readonly floor: number;
}

export class PlaceEditor {
  /** Device whose place is being entered; null if none is. */
  device = $state.raw<PlacedDevice | null>(null);
  /** Floor of the place. It stays while other floors are looked at, until one of them is tapped. */
  floor = $state(0);
  x = $state("");
  y = $state("");
  readonly point = $derived(parsePoint(this.x, this.y));
  /** Error of the last attempt to save the place. */
  problem = $state<string | null>(null);

  constructor(
    readonly data: SiteData,
    readonly floors: SiteFloors,
  ) {}

  /** Begin to enter the place of a device; without one so far, on the floor that is shown. */
  open(device: PlacedDevice, place: FloorPoint | null): void {
    this.device = device;
    this.problem = null;
    this.floor = place?.floor ?? this.#shownFloor;
    this.x = place === null ? "" : formatField(place.x);
    this.y = place === null ? "" : formatField(place.y);
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

  /** Fill in a point of the floor that is shown. */
  pick(point: Point): void {
    this.floor = this.#shownFloor;
    this.x = formatField(point.x);
    this.y = formatField(point.y);
  }

  /** Return the entered point if it is on a floor. */
  findPoint(floor: number | undefined): Point | null {
    return this.device !== null && this.floor === floor ? this.point : null;
  }

  /** Set the entered place. */
  async save(): Promise<void> {
    const { device, floor, point } = this;
    if (device === null || point === null) return;
    this.problem = null;
    try {
      await this.#set(device, { floor, ...point });
    } catch (error) {
      this.problem = describeError(error);
      return;
    }
    if (this.device === device) this.close();
    void this.data.loadPlaces();
  }

  /** Set the place of a device that was dragged to a point of the floor that is shown. Return when the places have been
   * loaded again. */
  async drop(device: PlacedDevice, point: Point): Promise<void> {
    try {
      await this.#set(device, { floor: this.#shownFloor, ...point });
    } catch (error) {
      toasts.showError(describeError(error));
    }
    await this.data.loadPlaces();
  }

  /** Set the place of a device that was dragged from its list; the text is that of `formatDragged`. */
  dropText(text: string, point: Point): void {
    const [id, ...name] = text.split(" ");
    if (id?.startsWith("bmac-")) void this.drop({ id, name: name.join(" ") }, point);
  }

  get #shownFloor(): number {
    return this.floors.shown?.floor ?? 0;
  }

  async #set({ id, name }: PlacedDevice, { floor, x, y }: FloorPoint): Promise<void> {
    const body = { site: this.data.id, floor, x: roundMeters(x), y: roundMeters(y) };
    await api.PUT("/api/v1/devices/{device_id}/place", { params: { path: { device_id: id } }, body });
    toasts.showSuccess(en.sites.anchors.saved(name, this.floors.getName(floor), formatMeters(x), formatMeters(y)));
  }
}

/** Return the text that stands for a device while it is dragged. */
export function formatDragged({ id, name }: PlacedDevice): string {
  return `${id} ${name}`;
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
