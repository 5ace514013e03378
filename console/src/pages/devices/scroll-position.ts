/** Scroll position of the device list, stored with the browser's history entry so that Back and a reload restore it. */
export interface ScrollPosition {
  /** Number of loaded rows. */
  readonly rows: number;
  /** Scroll offset in pixels. */
  readonly top: number;
}

export function saveScrollPosition(position: ScrollPosition): void {
  history.replaceState({ devices: position }, "");
}

/** Return the position stored with the current history entry; null if there is none. */
export function loadScrollPosition(): ScrollPosition | null {
  const state: unknown = history.state;
  if (typeof state !== "object" || state === null || !("devices" in state)) return null;
  const position = state.devices;
  if (typeof position !== "object" || position === null || !("rows" in position) || !("top" in position)) return null;
  const { rows, top } = position;
  return typeof rows === "number" && typeof top === "number" ? { rows, top } : null;
}
