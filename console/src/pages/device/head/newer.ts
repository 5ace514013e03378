/** Firmware that a device could get. */
import type { Schemas } from "../../../api/client";
import { isKnown, isOlder, parseVersion } from "../../../text/versions";

type Device = Schemas["DeviceDetail"];
type Firmware = Schemas["Firmware"];

/** The newest of some released firmware that fits a device and is newer than what it runs; null: none. */
export function newerFor(device: Device, released: readonly Firmware[]): Firmware | null {
  const runs = parseVersion(device.firmwareVersionText);
  if (runs === null || !isKnown(device.firmwareVersionText)) return null;
  let newest: Firmware | null = null;
  let best = runs;
  for (const firmware of released) {
    const version = parseVersion(firmware.version);
    if (version === null || !isOlder(best, version) || !fits(device, firmware)) continue;
    const min = firmware.minVersion === null ? null : parseVersion(firmware.minVersion);
    if (min !== null && isOlder(runs, min)) continue;
    newest = firmware;
    best = version;
  }
  return newest;
}

function fits(device: Device, { modelNumber, hardwareVersions }: Firmware): boolean {
  if (modelNumber !== device.modelNumber) return false;
  return hardwareVersions.length === 0 || hardwareVersions.includes(device.hardwareVersion);
}
