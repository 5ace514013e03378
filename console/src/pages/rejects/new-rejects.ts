/** Count of new rejects. They have no id, so the listed ones are searched in the newer list by content. */
import type { Schemas } from "../../api/client";

type Reject = Schemas["Reject"];

/** Number of listed rejects to compare. */
const COMPARED = 5;

/** Return how many rejects of the newer list come before the listed ones; all, if these are no longer in it. */
export function countNewRejects(newer: readonly Reject[], shown: readonly Reject[]): number {
  const keys = shown.slice(0, COMPARED).map(buildKey);
  const position = newer.findIndex((_, index) =>
    keys.every((key, step) => {
      const other = newer[index + step];
      return other === undefined || buildKey(other) === key;
    }),
  );
  return position < 0 || keys.length === 0 ? newer.length : position;
}

function buildKey(reject: Reject): string {
  return JSON.stringify([reject.time, reject.topic, reject.reason, reject.payload]);
}
