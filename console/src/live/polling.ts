/** Polling of data without live events, while the tab is visible and live values are not paused. */
import { live } from "./socket.svelte";

const DEFAULT_INTERVAL = 5000;

/** Call `read` every `every` milliseconds until the returned function is called. Calls do not overlap. */
export function startPolling(read: () => Promise<void>, every = DEFAULT_INTERVAL): () => void {
  let isReading = false;
  const timer = setInterval(() => {
    if (isReading || live.state !== "live" || document.hidden) return;
    isReading = true;
    void read().finally(() => (isReading = false));
  }, every);
  return () => clearInterval(timer);
}
