import { count } from "./format";

/** So many devices. */
export function deviceCountText(number: number): string {
  return `${count(number)} ${number === 1 ? "device" : "devices"}`;
}
