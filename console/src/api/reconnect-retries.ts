/** Failed requests that are repeated when the service is reachable again. */
type Retry = () => void;

const waiting = new Set<Retry>();

/** Call `retry` once when the service is back, unless `cancelRetry` is called before. */
export function retryOnReconnect(retry: Retry): void {
  waiting.add(retry);
}

export function cancelRetry(retry: Retry): void {
  waiting.delete(retry);
}

/** Run all waiting retries, when the service is back. Those that fail again wait for the next reconnect. */
export function runRetries(): void {
  const all = [...waiting];
  waiting.clear();
  for (const retry of all) retry();
}
