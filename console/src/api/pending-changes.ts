/** Live changes that arrive while a response is pending. The response may be older than they are, so they are applied
 * to it. */
export type Change<Value> = (value: Value) => Value;

export class PendingChanges<Value> {
  #changes: Change<Value>[] | null = null;

  /** Start recording when a request is sent. Its response includes all earlier changes. */
  start(): void {
    this.#changes = [];
  }

  add(change: Change<Value>): void {
    this.#changes?.push(change);
  }

  /** Apply the recorded changes to a response. */
  applyTo(answer: Value): Value {
    return (this.#changes ?? []).reduce((value, change) => change(value), answer);
  }

  /** Stop recording. */
  end(): void {
    this.#changes = null;
  }
}
