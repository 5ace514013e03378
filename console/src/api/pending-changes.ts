/** What is told while an answer is on its way. The answer may be older than that: so it is laid over it. */
export type Change<Value> = (value: Value) => Value;

export class PendingChanges<Value> {
  #changes: Change<Value>[] | null = null;

  /** A question is asked. Whatever was told before is part of its answer. */
  start(): void {
    this.#changes = [];
  }

  add(change: Change<Value>): void {
    this.#changes?.push(change);
  }

  /** The answer as it is by now. */
  applyTo(answer: Value): Value {
    return (this.#changes ?? []).reduce((value, change) => change(value), answer);
  }

  /** Nothing is on its way any more. */
  end(): void {
    this.#changes = null;
  }
}
