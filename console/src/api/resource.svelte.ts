/** One thing that is read, and read again. The newest question wins; what is shown stays while it is asked anew. What
 * failed is asked again when the service is back. */
import { Problem, describeError } from "./client";
import { type Change, PendingChanges } from "./pending-changes";
import { cancelRetry, retryOnReconnect } from "./reconnect-retries";

export class Resource<Value> {
  value = $state.raw<Value | null>(null);
  isLoading = $state(false);
  problem = $state<string | null>(null);
  /** Whether the service says that there is no such thing. */
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

  /** Something was told: it holds for what is shown, and for an answer that is on its way. Where nothing is shown yet,
   * it begins with `empty`, or waits for the answer. */
  applyChange(change: Change<Value>, empty: Value | null = null): void {
    const before = this.value ?? empty;
    if (before !== null) this.value = change(before);
    this.#meanwhile.add(change);
  }

  /** Let nothing come any more. */
  stop(): void {
    cancelRetry(this.#retry);
    this.#asking?.abort();
    this.#asking = null;
    this.#meanwhile.end();
    this.isLoading = false;
  }
}
