/** Levels from which readings count in the coverage, by their names in the address. */
export type Level = "any" | "weak" | "fair" | "good";
export const LEVELS: readonly Level[] = ["any", "weak", "fair", "good"];

/** Lowest RSSI in dBm of each level, as in the signal classes; null: what anchors receive. */
export const MIN_RSSI: Record<Level, number | null> = { any: null, weak: -88, fair: -80, good: -70 };
