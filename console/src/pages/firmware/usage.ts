/** Number of devices that run a firmware, and of devices that could be updated to it. The device summary has versions
 * without their betas, so a beta is counted separately; elsewhere a beta counts as its final version. */
import { type Version, isBeta, isOlder, parseVersion } from "../../text/versions";
import type { Summary } from "../../filtering/device-count.svelte";
import type { Filter } from "../../filtering/filters";
import type { DeviceCounts } from "../../filtering/device-counts.svelte";
import type { Firmware } from "./records";

export interface Usage {
  /** Summary of all devices of the model. */
  readonly model: Summary;
  /** Number of devices that run this version. */
  readonly inUse: number;
  /** Number of devices with an older version that could be updated to this one. */
  readonly older: number;
}

/** Return the device filters whose counts `computeUsage` needs. */
export function listCountFilters(firmware: Firmware): readonly Filter[] {
  return [{ ModelNumber: firmware.modelNumber }, ...buildBetaFilters(firmware), ...buildHardwareFilters(firmware)];
}

/** Return the usage of a firmware; null until all its filters are counted. */
export function computeUsage(firmware: Firmware, deviceCounts: Pick<DeviceCounts, "get">): Usage | null {
  const model = deviceCounts.get({ ModelNumber: firmware.modelNumber });
  const betaSummaries = buildBetaFilters(firmware).map((filter) => deviceCounts.get(filter));
  const hardwareSummaries = buildHardwareFilters(firmware).map((filter) => deviceCounts.get(filter));
  const loaded = [...betaSummaries, ...hardwareSummaries].filter((summary) => summary !== null);
  if (model === null || loaded.length < betaSummaries.length + hardwareSummaries.length) return null;
  const [beta] = betaSummaries;
  const inUse = beta ? beta.total : (model.firmware.find(({ value }) => value === firmware.version)?.count ?? 0);
  const suitable = hardwareSummaries.length === 0 ? [model] : loaded.slice(betaSummaries.length);
  return { model, inUse, older: suitable.reduce((sum, each) => sum + countOlder(each, firmware), 0) };
}

/** Return the filter that counts a beta; empty: the version is not a beta. */
function buildBetaFilters({ modelNumber: ModelNumber, version: FirmwareVersion }: Firmware): readonly Filter[] {
  const version = parseVersion(FirmwareVersion);
  return version !== null && isBeta(version) ? [{ ModelNumber, FirmwareVersion }] : [];
}

/** Return one filter per hardware version of the firmware; empty: any hardware. */
function buildHardwareFilters({ modelNumber: ModelNumber, hardwareVersions }: Firmware): readonly Filter[] {
  return hardwareVersions.map((HardwareVersion) => ({ ModelNumber, HardwareVersion }));
}

/** Count the devices whose version is older than the firmware, but not older than its minimum version. */
function countOlder(summary: Summary, firmware: Firmware): number {
  const version = parseVersion(firmware.version);
  const minVersion: Version | null = firmware.minVersion === null ? null : parseVersion(firmware.minVersion);
  if (version === null) return 0;
  const shares = summary.firmware.filter(({ value }) => {
    const running = parseVersion(value);
    return running !== null && isOlder(running, version) && (minVersion === null || !isOlder(running, minVersion));
  });
  return shares.reduce((sum, { count }) => sum + count, 0);
}
