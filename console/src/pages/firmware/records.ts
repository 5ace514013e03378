/** Records of firmware: what they are called, and where they and their devices are. */
import { catalogue } from "../../api/catalogue.svelte";
import type { Schemas } from "../../api/client";
import { en } from "../../text/en";

export type Firmware = Schemas["Firmware"];

export function placeOf(id: string): string {
  return `/firmware/${encodeURIComponent(id)}`;
}

/** The devices of a model that run a version, in the list of devices. */
export function devicesWith(modelNumber: string, version: string): string {
  return `/devices?ModelNumber=${encodeURIComponent(modelNumber)}&FirmwareVersion=${encodeURIComponent(version)}`;
}

/** The product that it is for and its version, as people name it. */
export function nameOf({ modelNumber, version }: Firmware): string {
  return en.firmware.detail.title(catalogue.getProductName(modelNumber) ?? en.firmware.model(modelNumber), version);
}
