/** What an update says of itself, for people. */
import { formatDateTime, toSentence } from "./format";

/** A time as the service writes it. */
const TIME = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g;

/** What an execution says of itself: why it waits, or why it ended like this. The word for programs in front is left out;
 * empty: there is nothing to say. */
export function updateReason(execution: { readonly waitingFor: string | null; readonly reason: string | null }): string {
  const said = execution.waitingFor ?? execution.reason ?? "";
  return toSentence(said.replace(/^[a-z-]+: /, "").replace(TIME, (time) => formatDateTime(time)));
}
