/** How many devices run a firmware, and how many could get it. The summary of devices tells versions without their
 * betas, so a beta is counted by itself, and elsewhere betas count as the version that they lead to. */
import { type Version, isBeta, isOlder, parseVersion } from "../../text/versions";
import type { Summary } from "../../filtering/device-count.svelte";
import type { Filter } from "../../filtering/filters";
import type { DeviceCounts } from "../../filtering/device-counts.svelte";
import type { Firmware } from "./records";

export interface Usage {
  /** All devices of its model. */
  readonly model: Summary;
  readonly inUse: number;
  /** Older ones that it fits. */
  readonly older: number;
}

/** What has to be counted to know it. */
export function countedFor(firmware: Firmware): readonly Filter[] {
  return [{ ModelNumber: firmware.modelNumber }, ...ownOf(firmware), ...fittingOf(firmware)];
}

/** null until all of that is counted. */
export function usageOf(firmware: Firmware, tally: Pick<DeviceCounts, "get">): Usage | null {
  const model = tally.get({ ModelNumber: firmware.modelNumber });
  const own = ownOf(firmware).map((filter) => tally.get(filter));
  const fitting = fittingOf(firmware).map((filter) => tally.get(filter));
  const all = [...own, ...fitting].filter((summary) => summary !== null);
  if (model === null || all.length < own.length + fitting.length) return null;
  const [beta] = own;
  const inUse = beta ? beta.total : (model.firmware.find(({ value }) => value === firmware.version)?.count ?? 0);
  const fits = fitting.length === 0 ? [model] : all.slice(own.length);
  return { model, inUse, older: fits.reduce((sum, each) => sum + olderIn(each, firmware), 0) };
}

/** A beta by itself. */
function ownOf({ modelNumber: ModelNumber, version: FirmwareVersion }: Firmware): readonly Filter[] {
  const version = parseVersion(FirmwareVersion);
  return version !== null && isBeta(version) ? [{ ModelNumber, FirmwareVersion }] : [];
}

/** The hardware that it is for; none: any. */
function fittingOf({ modelNumber: ModelNumber, hardwareVersions }: Firmware): readonly Filter[] {
  return hardwareVersions.map((HardwareVersion) => ({ ModelNumber, HardwareVersion }));
}

function olderIn(summary: Summary, firmware: Firmware): number {
  const version = parseVersion(firmware.version);
  const min: Version | null = firmware.minVersion === null ? null : parseVersion(firmware.minVersion);
  if (version === null) return 0;
  const shares = summary.firmware.filter(({ value }) => {
    const runs = parseVersion(value);
    return runs !== null && isOlder(runs, version) && (min === null || !isOlder(runs, min));
  });
  return shares.reduce((sum, { count }) => sum + count, 0);
}
