/** Batching of live events until the next frame or longer: a hundred events at once are one change on the screen. */
import type { LiveEvent } from "./socket.svelte";

/** Milliseconds after which a batch is applied anyway: hidden tabs get no frames. */
const MAX_DELAY = 1000;

export interface EventBatcher {
  add(event: LiveEvent): void;
  stop(): void;
}

/** Batch events with a pause of `pause()` milliseconds between two batches, for rates that cannot be read. The first
 * event after a pause is applied at once; `stop` applies what is waiting. */
export function throttleEvents(pause: () => number, apply: (events: readonly LiveEvent[]) => void): EventBatcher {
  let waiting: LiveEvent[] = [];
  let last = -Infinity;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const empty = (): void => {
    clearTimeout(timer);
    const events = waiting;
    waiting = [];
    last = performance.now();
    if (events.length > 0) apply(events);
  };
  return {
    add(event) {
      waiting.push(event);
      if (waiting.length === 1) timer = setTimeout(empty, Math.max(0, last + pause() - performance.now()));
    },
    stop: empty,
  };
}

export function batchPerFrame(apply: (events: readonly LiveEvent[]) => void): EventBatcher {
  let waiting: LiveEvent[] = [];
  let frame = 0;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const empty = (): readonly LiveEvent[] => {
    cancelAnimationFrame(frame);
    clearTimeout(timer);
    const events = waiting;
    waiting = [];
    return events;
  };
  return {
    add(event) {
      waiting.push(event);
      if (waiting.length > 1) return;
      frame = requestAnimationFrame(() => apply(empty()));
      timer = setTimeout(() => apply(empty()), MAX_DELAY);
    },
    stop() {
      empty();
    },
  };
}
