/** Signal classes of the service, by their lowest RSSI in dBm. */
import type { Schemas } from "../api/client";

export type SignalClass = Schemas["TopologyNode"]["signal"] & string;

const LOWEST_RSSI: readonly (readonly [SignalClass, number])[] = [
  ["good", -70],
  ["fair", -80],
  ["weak", -88],
];

/** Signal classes, the best first. */
export const SIGNAL_CLASSES: readonly SignalClass[] = ["good", "fair", "weak", "very-weak"];

export function classifySignal(rssi: number): SignalClass {
  return LOWEST_RSSI.find(([, lowest]) => rssi >= lowest)?.[0] ?? "very-weak";
}

/** Return the number of bars, of four. */
export function countBars(signal: SignalClass): number {
  return SIGNAL_CLASSES.length - SIGNAL_CLASSES.indexOf(signal);
}
