/** Requests that reached nobody. Who watches the service hears of it, and finds out what that means. */
type Listener = () => void;

const listeners = new Set<Listener>();

/** Hear of each such request, until the returned function is called. */
export function onUnreachable(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function reportUnreachable(): void {
  for (const listener of listeners) listener();
}
