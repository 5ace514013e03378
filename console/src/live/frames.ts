/** Gathers what comes until the next frame is painted, or for longer: a hundred events in a moment are one change on the
 * screen. */
import type { LiveEvent } from "./socket.svelte";

/** Who is not seen is not painted: after so long what was gathered is taken all the same. */
const LONGEST = 1000;

export interface EventBatcher {
  add(event: LiveEvent): void;
  stop(): void;
}

/** At once after a silence, and then with a pause in between: for what is more than anybody reads. It says how long, in
 * milliseconds. Who stops has what was gathered up to then. */
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
      timer = setTimeout(() => apply(empty()), LONGEST);
    },
    stop() {
      empty();
    },
  };
}
