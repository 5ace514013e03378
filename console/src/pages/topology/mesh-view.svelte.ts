/** Mesh shown on the page: that of a past time, or that of now, which is kept up to date without moving anything. */
import { type Schemas, api, requireBody } from "../../api/client";
import { deviceNames } from "../../api/device-names.svelte";
import { Resource } from "../../api/resource.svelte";
import { parseDeviceId } from "../../text/format";
import { type Mesh, type MeshChanges, buildMesh, compareMeshes, updateValues } from "./mesh";

interface GatewayMesh {
  readonly gateway: string;
  /** Time that was asked for, in milliseconds since 1970; null: now. */
  readonly at: number | null;
  readonly mesh: Mesh;
}

/** Devices of a gateway, for their names and firmware. */
interface Inventory {
  readonly gateway: string;
  readonly devices: readonly Schemas["Device"][];
}

/** Devices per request for names and firmware, and the number of requests: larger gateways show some MACs. */
const PAGE_SIZE = 1000;
const MAX_PAGES = 5;

export class MeshView {
  /** Newest mesh. */
  readonly resource = new Resource<GatewayMesh>();
  /** Mesh that is shown: its nodes and parents stay until the user asks for those of the newest one. */
  #shown = $state.raw<GatewayMesh | null>(null);
  readonly mesh = $derived(this.#shown?.mesh ?? null);
  readonly gateway = $derived(this.#shown?.gateway ?? null);
  /** Changes that lead to the newest mesh; null: none. */
  readonly pending = $derived(this.mesh && this.resource.value && compareMeshes(this.mesh, this.resource.value.mesh));
  /** Changes since the mesh that was shown before. */
  changes = $state.raw<MeshChanges | null>(null);
  /** Whether a mesh of the same gateway was shown before. */
  hasPrevious = $state(false);
  readonly #inventory = new Resource<Inventory>();
  /** Firmware versions of the devices by MAC. */
  readonly firmware = $derived.by<ReadonlyMap<string, string>>(() => {
    const { gateway, devices } = this.#inventory.value ?? { gateway: null, devices: [] };
    if (gateway !== this.gateway) return new Map();
    return new Map(devices.map(({ id, firmwareVersion }) => [parseDeviceId(id), firmwareVersion]));
  });

  /** Load the mesh of a gateway at a time; null: now. */
  async load(gateway: string, at: number | null): Promise<void> {
    await this.resource.load((signal) => fetchMesh(gateway, at, signal), (loaded) => this.#show(loaded));
  }

  /** Load the mesh of now again. New values are shown at once; other links wait until `showNewest` is called. */
  async refresh(gateway: string): Promise<void> {
    if (this.resource.isLoading) return;
    if (this.#shown?.gateway !== gateway || this.#shown.at !== null) return this.load(gateway, null);
    await this.resource.load((signal) => fetchMesh(gateway, null, signal), (newest) => {
      if (this.#shown) this.#shown = { ...newest, mesh: updateValues(this.#shown.mesh, newest.mesh) };
    });
  }

  /** Show the newest mesh, and what has changed. */
  showNewest(): void {
    if (this.resource.value) this.#show(this.resource.value);
    void this.loadInventory();
  }

  /** Load names and firmware of the devices of the gateway: far fewer requests than one by one. */
  async loadInventory(): Promise<void> {
    const { gateway } = this;
    if (gateway === null) return;
    await this.#inventory.load(async (signal) => ({ gateway, devices: await fetchDevices(gateway, signal) }), ({ devices }) => {
      for (const { id, friendlyName } of devices) deviceNames.set(parseDeviceId(id), friendlyName);
      // The inventory lacks devices that belong to another gateway now.
      if (this.mesh) deviceNames.load(this.mesh.byMac.keys());
    });
  }

  stop(): void {
    this.resource.stop();
    this.#inventory.stop();
  }

  #show(next: GatewayMesh): void {
    const before = this.gateway === next.gateway ? this.mesh : null;
    this.hasPrevious = before !== null;
    this.changes = before && compareMeshes(before, next.mesh);
    this.#shown = next;
    if (before === null) void this.loadInventory();
    // The inventory has most names.
    else if (!this.#inventory.isLoading) deviceNames.load(next.mesh.byMac.keys());
  }
}

async function fetchMesh(gateway: string, at: number | null, signal: AbortSignal): Promise<GatewayMesh> {
  const query = at === null ? {} : { At: new Date(at).toISOString() };
  const params = { path: { mac: gateway }, query };
  return { gateway, at, mesh: buildMesh(requireBody(await api.GET("/api/v1/gateways/{mac}/topology", { params, signal }))) };
}

async function fetchDevices(gateway: string, signal: AbortSignal): Promise<readonly Schemas["Device"][]> {
  const devices: Schemas["Device"][] = [];
  let token: string | null = null;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const query = { Gateway: gateway, MaxResults: PAGE_SIZE, ...(token !== null && { NextToken: token }) };
    const body: Schemas["DevicePage"] = requireBody(await api.GET("/api/v1/devices", { params: { query }, signal }));
    devices.push(...body.items);
    token = body.nextToken;
    if (token === null) break;
  }
  return devices;
}
