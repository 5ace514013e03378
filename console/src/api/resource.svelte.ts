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

  #asking: AbortController | null = null;
  #retry = (): void => undefined;
  readonly #meanwhile = new PendingChanges<Value>();

  async load(fetch: (signal: AbortSignal) => Promise<Value>): Promise<void> {
    this.#asking?.abort();
    cancelRetry(this.#retry);
    const asking = new AbortController();
    this.#asking = asking;
    this.#meanwhile.start();
    this.isLoading = true;
    try {
      const value = await fetch(asking.signal);
      if (this.#asking !== asking) return;
      this.value = this.#meanwhile.applyTo(value);
      this.problem = null;
      this.isMissing = false;
    } catch (error) {
      if (this.#asking !== asking) return;
      this.problem = describeError(error);
      this.isMissing = error instanceof Problem && error.status === 404;
      this.#retry = () => void this.load(fetch);
      retryOnReconnect(this.#retry);
    } finally {
      if (this.#asking === asking) {
        this.#asking = null;
        this.#meanwhile.end();
        this.isLoading = false;
      }
    }
  }

  /** Apply a live change to the value, and to the response that is pending. Without a value, start from `empty`; if
   * that is null, wait for the response. */
  applyChange(change: Change<Value>, empty: Value | null = null): void {
    const before = this.value ?? empty;
    if (before !== null) this.value = change(before);
    this.#meanwhile.add(change);
  }

  /** Cancel the pending request and its retry. */
  stop(): void {
    cancelRetry(this.#retry);
    this.#asking?.abort();
    this.#asking = null;
    this.#meanwhile.end();
    this.isLoading = false;
  }
}
