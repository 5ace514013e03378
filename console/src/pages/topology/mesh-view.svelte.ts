/** Mesh shown on the page: that of a past time, or that of now, which is kept up to date without moving anything. */
import { type Schemas, api, requireBody } from "../../api/client";
import { deviceNames } from "../../api/device-names.svelte";
import { Resource } from "../../api/resource.svelte";
import { parseDeviceId } from "../../text/format";
import { type Mesh, type MeshChanges, buildMesh, compareMeshes } from "./mesh";

interface ShownMesh {
  readonly gateway: string;
  readonly mesh: Mesh;
}

/** Devices per request for names and firmware, and the number of requests: larger gateways show some MACs. */
const PAGE_SIZE = 1000;
const MAX_PAGES = 5;

export class MeshView {
  readonly resource = new Resource<ShownMesh>();
  readonly mesh = $derived(this.resource.value?.mesh ?? null);
  readonly gateway = $derived(this.resource.value?.gateway ?? null);
  /** Newest mesh of now, if its links differ from those of the mesh that is shown. */
  newest = $state.raw<Mesh | null>(null);
  /** Changes that lead to the newest mesh; null: none. */
  readonly pending = $derived(this.mesh && this.newest ? compareMeshes(this.mesh, this.newest) : null);
  /** Changes since the mesh that was shown before. */
  changes = $state.raw<MeshChanges | null>(null);
  /** Whether a mesh of the same gateway was shown before. */
  hasPrevious = $state(false);
  /** Firmware versions of the devices by MAC. */
  firmware = $state.raw<ReadonlyMap<string, string>>(new Map());

  readonly #inventory = new Resource<readonly Schemas["Device"][]>();

  /** Load the mesh of a gateway at a time; null: now. */
  async load(gateway: string, at: number | null): Promise<void> {
    this.newest = null;
    const before = this.resource.value;
    await this.resource.load(async (signal) => ({ gateway, mesh: await fetchMesh(gateway, at, signal) }));
    const after = this.resource.value;
    if (after === null || after === before) return;
    this.hasPrevious = before?.gateway === gateway;
    this.changes = before?.gateway === gateway ? compareMeshes(before.mesh, after.mesh) : null;
    if (before?.gateway !== gateway) void this.#loadInventory(gateway);
    this.#loadNames(after.mesh);
  }

  /** Load the mesh of now again. New values are shown at once; other links wait until `showNewest` is called. */
  async refresh(): Promise<void> {
    const shown = this.resource.value;
    if (shown === null || this.resource.isLoading) return;
    const mesh = await fetchMesh(shown.gateway, null).catch(() => null);
    // The user has gone on meanwhile.
    if (mesh === null || this.resource.value !== shown || this.resource.isLoading) return;
    if (compareMeshes(shown.mesh, mesh) !== null) {
      this.newest = mesh;
      return;
    }
    this.newest = null;
    this.resource.value = { gateway: shown.gateway, mesh };
  }

  /** Show the newest mesh, and what has changed. */
  showNewest(): void {
    const { newest, gateway } = this;
    if (newest === null || gateway === null) return;
    this.changes = this.pending;
    this.hasPrevious = true;
    this.newest = null;
    this.resource.value = { gateway, mesh: newest };
    this.#loadNames(newest);
  }

  stop(): void {
    this.resource.stop();
    this.#inventory.stop();
  }

  /** Load names and firmware of the devices of a gateway: far fewer requests than one by one. */
  async #loadInventory(gateway: string): Promise<void> {
    this.firmware = new Map();
    await this.#inventory.load((signal) => fetchDevices(gateway, signal));
    const devices = this.#inventory.value ?? [];
    this.firmware = new Map(devices.map(({ id, firmwareVersion }) => [parseDeviceId(id), firmwareVersion]));
    for (const { id, friendlyName } of devices) deviceNames.set(parseDeviceId(id), friendlyName);
    if (this.mesh) this.#loadNames(this.mesh);
  }

  /** Load the names of devices that the inventory lacks: they belong to another gateway now. */
  #loadNames(mesh: Mesh): void {
    if (!this.#inventory.isLoading && this.#inventory.value !== null) deviceNames.load(mesh.byMac.keys());
  }
}

async function fetchMesh(gateway: string, at: number | null, signal?: AbortSignal): Promise<Mesh> {
  const query = at === null ? {} : { At: new Date(at).toISOString() };
  const params = { path: { mac: gateway }, query };
  return buildMesh(requireBody(await api.GET("/api/v1/gateways/{mac}/topology", { params, ...(signal && { signal }) })));
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
