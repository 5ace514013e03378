/** Actions that a user can run on a job, and when each is available. */
import { api, requireBody } from "../../../../api/client";
import { RETRYABLE_STATES, CANCELABLE_STATES, type Job, countExecutions, isFinished } from "../../../../jobs/states";

/** Actions that the service answers with a job. */
export type JobCommand = "start" | "pause" | "resume" | "apply" | "cancel" | "retry";

export type JobAction = JobCommand | "delete";

/** Return the actions that are available for a job, the most likely one first. */
export function listActions(job: Job): readonly JobAction[] {
  const { state } = job;
  const actions: JobAction[] = [];
  if (state === "CREATED") actions.push("start");
  if (state === "PAUSED") actions.push("resume");
  const isUnderWay = state === "IN_PROGRESS" || state === "PAUSED";
  if (job.stage && job.appliedAt === null && isUnderWay && countExecutions(job.counts, ["STAGED"]) > 0) actions.push("apply");
  if (state === "IN_PROGRESS" || state === "SCHEDULED") actions.push("pause");
  if (CANCELABLE_STATES.includes(state)) actions.push("cancel");
  if (isFinished(job) && countExecutions(job.counts, RETRYABLE_STATES) > 0) actions.push("retry");
  if (isFinished(job) || state === "CREATED") actions.push("delete");
  return actions;
}

/** Run a command and return the changed job, or the new job of a retry. Retries with the same idempotency key create only
 * one job. */
export async function runCommand(command: JobCommand, id: string, key: string): Promise<Job> {
  const params = { path: { job_id: id } };
  switch (command) {
    case "start":
    case "apply":
      return requireBody(await api.POST("/api/v1/jobs/{job_id}/apply", { params }));
    case "pause":
      return requireBody(await api.POST("/api/v1/jobs/{job_id}/pause", { params }));
    case "resume":
      return requireBody(await api.POST("/api/v1/jobs/{job_id}/resume", { params }));
    case "cancel":
      return requireBody(await api.POST("/api/v1/jobs/{job_id}/cancel", { params }));
    case "retry":
      return requireBody(
        await api.POST("/api/v1/jobs/{job_id}/retry", { params: { ...params, header: { "Idempotency-Key": key } } }),
      );
  }
}
