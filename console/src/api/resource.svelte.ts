/** A value that is loaded and reloaded. Only the newest request counts, the old value stays meanwhile, and a failed
 * request is repeated on reconnect. */
import { Problem, describeError } from "./client";
import { type Change, PendingChanges } from "./pending-changes";
import { cancelRetry, retryOnReconnect } from "./reconnect-retries";

export class Resource<Value> {
  value = $state.raw<Value | null>(null);
  isLoading = $state(false);
  problem = $state<string | null>(null);
  /** Whether the service returned 404. */
  isMissing = $state(false);

  #pending: AbortController | null = null;
  #retry = (): void => undefined;
  readonly #pendingChanges = new PendingChanges<Value>();

  /** Load the value, and call `onLoaded` with it. Work that depends on the value belongs there: a request that is
   * repeated on reconnect calls it too, but the returned promise does not wait for that. */
  async load(fetch: (signal: AbortSignal) => Promise<Value>, onLoaded?: (value: Value) => void): Promise<void> {
    this.#pending?.abort();
    cancelRetry(this.#retry);
    const pending = new AbortController();
    this.#pending = pending;
    this.#pendingChanges.start();
    this.isLoading = true;
    try {
      const value = await fetch(pending.signal);
      if (this.#pending !== pending) return;
      this.value = this.#pendingChanges.applyTo(value);
      this.problem = null;
      this.isMissing = false;
      onLoaded?.(this.value);
    } catch (error) {
      if (this.#pending !== pending) return;
      this.problem = describeError(error);
      this.isMissing = error instanceof Problem && error.status === 404;
      this.#retry = () => void this.load(fetch, onLoaded);
      retryOnReconnect(this.#retry);
    } finally {
      if (this.#pending === pending) {
        this.#pending = null;
        this.#pendingChanges.end();
        this.isLoading = false;
      }
    }
  }

  /** Apply a live change to the value, and to the response that is pending. Without a value, start from `empty`; if
   * that is null, wait for the response. */
  applyChange(change: Change<Value>, empty: Value | null = null): void {
    const before = this.value ?? empty;
    if (before !== null) this.value = change(before);
    this.#pendingChanges.add(change);
  }

  /** Cancel the pending request and its retry. */
  stop(): void {
    cancelRetry(this.#retry);
    this.#pending?.abort();
    this.#pending = null;
    this.#pendingChanges.end();
    this.isLoading = false;
  }
}
