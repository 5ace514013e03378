/** Percentages, rounded so that they stay on the correct side of a limit. */

/** Fixed-point scale of limits: nine decimals, since 2.2 has no exact binary form. */
const SCALE = 1_000_000_000;
const MAX_DECIMALS = 9;

const BELOW_ONE = "< 1 %";

const exact = new Intl.NumberFormat("en", { maximumFractionDigits: MAX_DECIMALS });

/** Format a percentage in full: 99.9999 is not 100. */
export function percentText(percent: number): string {
  return `${exact.format(percent)} %`;
}

/** Return whether a part is at least a percentage of the whole. */
export function reachesPercent(part: number, whole: number, percent: number): boolean {
  return compareShare(part, whole, percent) >= 0;
}

/** Format a share as a whole percentage, but never as 0 or 100 if it is only close. With limits, use as many decimals
 * as needed to show the share on its side of each limit. */
export function formatPercentage(part: number, whole: number, ...limits: readonly number[]): string {
  const share = whole === 0 ? 0 : (part / whole) * 100;
  if (whole === 0 || limits.length === 0) return formatWhole(share);
  const sides = [0, ...limits, 100].map((limit) => ({ limit, side: compareShare(part, whole, limit) }));
  for (let digits = 0; digits <= MAX_DECIMALS; digits += 1) {
    const rounded = Math.round(share * 10 ** digits) * 10 ** (MAX_DECIMALS - digits);
    if (sides.every(({ limit, side }) => Math.sign(rounded - toFixedPoint(limit)) === side)) return percentText(rounded / SCALE);
  }
  return percentText(share);
}

/** Format the progress of a job, which the service rounds down: 0 is not shown once a device has finished. */
export function progressText(progress: number, finished: number): string {
  return progress === 0 && finished > 0 ? BELOW_ONE : `${progress} %`;
}

function formatWhole(share: number): string {
  const rounded = Math.round(share);
  if (rounded === 100 && share < 100) return "> 99 %";
  return rounded === 0 && share > 0 ? BELOW_ONE : `${rounded} %`;
}

function toFixedPoint(percent: number): number {
  return Math.round(percent * SCALE);
}

/** Return -1 or 1 if a part is less or more than a percentage of the whole, 0 if equal. Exact, without rounding. */
function compareShare(part: number, whole: number, percent: number): number {
  const [mine, limit] = [BigInt(part) * BigInt(100 * SCALE), BigInt(toFixedPoint(percent)) * BigInt(whole)];
  return mine < limit ? -1 : mine > limit ? 1 : 0;
}
