/** Reasons of update executions as text. */
import { formatDateTime, toSentence } from "./format";

/** ISO time in a text of the service. */
const TIME = /\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z/g;

/** Return why an execution waits or how it ended, without the leading keyword for programs; empty if unknown. */
export function updateReason(execution: { readonly waitingFor: string | null; readonly reason: string | null }): string {
  const reason = execution.waitingFor ?? execution.reason ?? "";
  return toSentence(reason.replace(/^[a-z-]+: /, "").replace(TIME, (time) => formatDateTime(time)));
}
