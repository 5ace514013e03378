/** Reads again and again what no live event tells, while somebody sees it and nobody has paused. */
import { live } from "./socket.svelte";

const USUAL = 5000;

/** Begin; the returned function ends it. A slow answer is waited for, not asked for twice. */
export function startPolling(read: () => Promise<void>, every = USUAL): () => void {
  let isReading = false;
  const timer = setInterval(() => {
    if (isReading || live.state !== "live" || document.hidden) return;
    isReading = true;
    void read().finally(() => (isReading = false));
  }, every);
  return () => clearInterval(timer);
}
