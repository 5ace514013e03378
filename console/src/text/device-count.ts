import { formatCount } from "./format";

/** So many devices. */
export function deviceCountText(number: number): string {
  return `${formatCount(number)} ${number === 1 ? "device" : "devices"}`;
}
