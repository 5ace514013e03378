/** The reason that an execution gives for its state, unless the job shows that it no longer applies: a reason that holds
 * for the whole job may have ended before the execution is loaded again. */
import type { Job } from "../../../jobs/states";
import { updateReason } from "../../../text/update-text";
import type { Execution } from "./execution-list.svelte";

type ExecutionReason = Pick<Execution, "state" | "wave" | "waitingFor" | "reason">;

/** Checks whether a wait still applies to the job, by the keyword at the start of `waitingFor`. */
const STILL_APPLIES: Readonly<Record<string, (job: Job, execution: ExecutionReason) => boolean>> = {
  wave: ({ waveStates }, { wave }) =>
    waveStates.some(({ name, state }, index) => (name ?? String(index + 1)) === wave && state === "WAITING"),
  window: ({ state }) => state === "CREATED" || state === "PENDING_APPROVAL" || state === "SCHEDULED",
  paused: ({ state }) => state === "PAUSED" || state === "CANCELING",
};

/** Return why an execution waits or ended; empty: there is no reason, or it is outdated and about to be loaded again. */
export function formatExecutionReason(job: Job, execution: ExecutionReason): string {
  const keyword = execution.state === "QUEUED" ? /^[a-z-]+(?=: )/.exec(execution.waitingFor ?? "")?.[0] : undefined;
  const stillApplies = keyword === undefined ? undefined : STILL_APPLIES[keyword];
  return stillApplies === undefined || stillApplies(job, execution) ? updateReason(execution) : "";
}
