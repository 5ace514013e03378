/** Shares in percent, rounded so that what is said stays true: also beside a limit that a share reaches or misses. */

/** Limits are read as people typed them, to nine digits behind the point: 2.2 has no exact binary form. */
const PARTS = 1_000_000_000;
const MOST_DIGITS = 9;

const NEARLY_NONE = "< 1 %";

const exact = new Intl.NumberFormat("en", { maximumFractionDigits: MOST_DIGITS });

/** A number of percent in full: 99.9999 is not 100. */
export function percentText(percent: number): string {
  return `${exact.format(percent)} %`;
}

/** Whether a count is at least so many percent of all. */
export function reachesPercent(part: number, whole: number, percent: number): boolean {
  return compare(part, whole, percent) >= 0;
}

/** A share in whole percent, but never 0 or 100 for what only comes near it. Beside limits it has as many digits as it
 * takes to be on the same side of each of them as the counts are. */
export function formatPercentage(part: number, whole: number, ...limits: readonly number[]): string {
  const share = whole === 0 ? 0 : (part / whole) * 100;
  if (whole === 0 || limits.length === 0) return rough(share);
  const sides = [0, ...limits, 100].map((limit) => ({ limit, side: compare(part, whole, limit) }));
  for (let digits = 0; digits <= MOST_DIGITS; digits += 1) {
    const rounded = Math.round(share * 10 ** digits) * 10 ** (MOST_DIGITS - digits);
    if (sides.every(({ limit, side }) => Math.sign(rounded - partsOf(limit)) === side)) return percentText(rounded / PARTS);
  }
  return percentText(share);
}

/** The progress of a job, which the service rounds down: 0 is not said where something is finished. */
export function progressText(progress: number, finished: number): string {
  return progress === 0 && finished > 0 ? NEARLY_NONE : `${progress} %`;
}

function rough(share: number): string {
  const rounded = Math.round(share);
  if (rounded === 100 && share < 100) return "> 99 %";
  return rounded === 0 && share > 0 ? NEARLY_NONE : `${rounded} %`;
}

function partsOf(percent: number): number {
  return Math.round(percent * PARTS);
}

/** Whether a count is less (-1) or more (1) than so many percent of all, without rounding. */
function compare(part: number, whole: number, percent: number): number {
  const [mine, limit] = [BigInt(part) * BigInt(100 * PARTS), BigInt(partsOf(percent)) * BigInt(whole)];
  return mine < limit ? -1 : mine > limit ? 1 : 0;
}
