import { formatCount } from "./format";

/** Return "1 device" or "N devices". */
export function deviceCountText(number: number): string {
  return `${formatCount(number)} ${number === 1 ? "device" : "devices"}`;
}
