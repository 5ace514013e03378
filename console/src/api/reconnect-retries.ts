/** What failed, and is tried again as soon as the service is back. Who finds that out says so here. */
type Retry = () => void;

const waiting = new Set<Retry>();

/** Try again when the service is back: once, unless `cancelRetry` is called before. */
export function retryOnReconnect(retry: Retry): void {
  waiting.add(retry);
}

export function cancelRetry(retry: Retry): void {
  waiting.delete(retry);
}

/** The service is back. What fails again waits for the next time. */
export function runRetries(): void {
  const all = [...waiting];
  waiting.clear();
  for (const retry of all) retry();
}
