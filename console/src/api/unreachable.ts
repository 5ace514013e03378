/** Notification of requests that got no response, for the service health check. */
type Listener = () => void;

const listeners = new Set<Listener>();

/** Call `listener` for each such request, until the returned function is called. */
export function onUnreachable(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function reportUnreachable(): void {
  for (const listener of listeners) listener();
}
