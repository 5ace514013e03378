/** How many rejects are new. They have no name of their own: what is shown is sought in what was read since. */
import type { Schemas } from "../../api/client";

type Reject = Schemas["Reject"];

const ENOUGH = 5;

/** How many of the newer list stand in front of what is shown; all of them, if that is not in it any more. */
export function newOnes(newer: readonly Reject[], shown: readonly Reject[]): number {
  const marks = shown.slice(0, ENOUGH).map(markOf);
  const place = newer.findIndex((_, index) =>
    marks.every((mark, step) => {
      const other = newer[index + step];
      return other === undefined || markOf(other) === mark;
    }),
  );
  return place < 0 || marks.length === 0 ? newer.length : place;
}

function markOf(reject: Reject): string {
  return JSON.stringify([reject.time, reject.topic, reject.reason, reject.payload]);
}
