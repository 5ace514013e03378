/** What an execution says of itself, as far as the job does not deny it. What holds for the whole job may be over before
 * the execution is read again. */
import type { Job } from "../../../jobs/states";
import { updateReason } from "../../../text/update-text";
import type { Execution } from "./executions.svelte";

type Told = Pick<Execution, "state" | "wave" | "waitingFor" | "reason">;

/** By the word with which a sentence begins: whether the job is still like this. */
const HOLDS: Readonly<Record<string, (job: Job, execution: Told) => boolean>> = {
  wave: ({ waveStates }, { wave }) =>
    waveStates.some(({ name, state }, index) => (name ?? String(index + 1)) === wave && state === "WAITING"),
  window: ({ state }) => state === "CREATED" || state === "PENDING_APPROVAL" || state === "SCHEDULED",
  paused: ({ state }) => state === "PAUSED" || state === "CANCELING",
};

/** Why it waits, or why it ended like this; empty: there is nothing to say, or it is about to be read again. */
export function whyIn(job: Job, execution: Told): string {
  const word = execution.state === "QUEUED" ? /^[a-z-]+(?=: )/.exec(execution.waitingFor ?? "")?.[0] : undefined;
  const holds = word === undefined ? undefined : HOLDS[word];
  return holds === undefined || holds(job, execution) ? updateReason(execution) : "";
}
