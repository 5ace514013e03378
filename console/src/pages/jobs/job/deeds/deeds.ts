/** What people can do to a job, and when. */
import { api, requireBody } from "../../../../api/client";
import { RETRYABLE_STATES, CANCELABLE_STATES, type Job, countExecutions, isFinished } from "../../../../jobs/states";

export type Deed = "start" | "pause" | "resume" | "apply" | "cancel" | "retry";

/** What can be offered for a job: a deed, or that it goes for good. */
export type Offer = Deed | "delete";

/** What can be done to a job as it is, what one is most likely to want first. */
export function deedsOf(job: Job): readonly Offer[] {
  const { state } = job;
  const found: Offer[] = [];
  if (state === "CREATED") found.push("start");
  if (state === "PAUSED") found.push("resume");
  const isUnderWay = state === "IN_PROGRESS" || state === "PAUSED";
  if (job.stage && job.appliedAt === null && isUnderWay && countExecutions(job.counts, ["STAGED"]) > 0) found.push("apply");
  if (state === "IN_PROGRESS" || state === "SCHEDULED") found.push("pause");
  if (CANCELABLE_STATES.includes(state)) found.push("cancel");
  if (isFinished(job) && countExecutions(job.counts, RETRYABLE_STATES) > 0) found.push("retry");
  if (isFinished(job) || state === "CREATED") found.push("delete");
  return found;
}

/** Do it; tells the job as it is then, or the new one. With the same key a retry makes one job, however often it is asked
 * for. */
export async function doDeed(deed: Deed, id: string, key: string): Promise<Job> {
  const params = { path: { job_id: id } };
  switch (deed) {
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
