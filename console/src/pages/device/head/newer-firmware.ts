/** Search for a newer firmware that a device could run. */
import type { Schemas } from "../../../api/client";
import { isKnown, isOlder, parseVersion } from "../../../text/versions";

type Device = Schemas["DeviceDetail"];
type Firmware = Schemas["Firmware"];

/** Return the newest released firmware that fits a device and is newer than the one it runs; null if there is none. */
export function findNewerFirmware(device: Device, released: readonly Firmware[]): Firmware | null {
  const running = parseVersion(device.firmwareVersionText);
  if (running === null || !isKnown(device.firmwareVersionText)) return null;
  let newest: Firmware | null = null;
  let newestVersion = running;
  for (const firmware of released) {
    const version = parseVersion(firmware.version);
    if (version === null || !isOlder(newestVersion, version) || !fitsDevice(device, firmware)) continue;
    const min = firmware.minVersion === null ? null : parseVersion(firmware.minVersion);
    if (min !== null && isOlder(running, min)) continue;
    newest = firmware;
    newestVersion = version;
  }
  return newest;
}

function fitsDevice(device: Device, { modelNumber, hardwareVersions }: Firmware): boolean {
  if (modelNumber !== device.modelNumber) return false;
  return hardwareVersions.length === 0 || hardwareVersions.includes(device.hardwareVersion);
}
