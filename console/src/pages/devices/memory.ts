/** Where the reader was in the list, kept with the entry of the browser's history: Back and a reload lead there. */
export interface Spot {
  /** How many rows were there. */
  readonly rows: number;
  /** How far the list was scrolled, in pixels. */
  readonly top: number;
}

export function keepSpot(spot: Spot): void {
  history.replaceState({ devices: spot }, "");
}

export function keptSpot(): Spot | null {
  const state: unknown = history.state;
  if (typeof state !== "object" || state === null || !("devices" in state)) return null;
  const spot = state.devices;
  if (typeof spot !== "object" || spot === null || !("rows" in spot) || !("top" in spot)) return null;
  const { rows, top } = spot;
  return typeof rows === "number" && typeof top === "number" ? { rows, top } : null;
}
