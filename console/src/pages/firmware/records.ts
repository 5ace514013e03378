/** Names of firmware records, and the paths of their pages and devices. */
import { catalogue } from "../../api/catalogue.svelte";
import type { Schemas } from "../../api/client";
import { en } from "../../text/en";

export type Firmware = Schemas["Firmware"];

export function buildFirmwarePath(id: string): string {
  return `/firmware/${encodeURIComponent(id)}`;
}

/** Return the path of the device list with the devices of a model that run a version. */
export function buildDevicesPath(modelNumber: string, version: string): string {
  return `/devices?ModelNumber=${encodeURIComponent(modelNumber)}&FirmwareVersion=${encodeURIComponent(version)}`;
}

/** Return the product and version of a firmware as its display name. */
export function formatFirmwareName({ modelNumber, version }: Firmware): string {
  return en.firmware.detail.title(catalogue.getProductName(modelNumber) ?? en.firmware.model(modelNumber), version);
}
