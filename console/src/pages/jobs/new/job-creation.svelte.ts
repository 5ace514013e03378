/** Dry run and creation of a job. Repeated clicks create only one job: equal requests have the same idempotency key. */
import { Problem, type Schemas, api, requireBody, describeError } from "../../../api/client";
import { createIdempotencyKey } from "../../../api/idempotency-key";
import { en } from "../../../text/en";
import { formatMac, parseDeviceId } from "../../../text/format";

const words = en.newJob.review;

export type NewJob = Schemas["NewJob"];
export type DryRun = Schemas["DryRun"];

/** Return what a job would do, without creating it. */
export async function runDryRun(request: NewJob, signal: AbortSignal): Promise<DryRun> {
  const result = await unwrapResponse(request, api.POST("/api/v1/jobs", { body: { ...request, dryRun: true }, signal }));
  if (!result.dryRun) throw new Error("a dry run created a job");
  return result;
}

export class JobCreation {
  isBusy = $state(false);
  problem = $state<string | null>(null);

  #lastRequest = "";
  #idempotencyKey = "";

  /** Create the job. Return null if another request is running, or on an error: then `problem` is set, and without a
   * response the job may still have been created. */
  async create(request: NewJob): Promise<Schemas["Job"] | null> {
    if (this.isBusy) return null;
    this.isBusy = true;
    this.problem = null;
    const text = JSON.stringify(request);
    if (text !== this.#lastRequest) this.#idempotencyKey = createIdempotencyKey();
    this.#lastRequest = text;
    try {
      const header = { "Idempotency-Key": this.#idempotencyKey };
      const job = await unwrapResponse(request, api.POST("/api/v1/jobs", { body: request, params: { header } }));
      if (job.dryRun) throw new Error("the service returned a dry run instead of a job");
      return job;
    } catch (error) {
      const isUnanswered = error instanceof Problem && error.status === 0;
      this.problem = isUnanswered ? `${describeError(error)} ${words.uncertain}` : describeError(error);
      return null;
    } finally {
      this.isBusy = false;
    }
  }
}

/** Return the body of a response. Errors about the target devices get texts that name the devices. */
async function unwrapResponse<Body>(request: NewJob, response: Promise<{ data?: Body }>): Promise<Body> {
  try {
    return requireBody(await response);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    const missingIds = error.faults.flatMap(({ field }) => {
      const index = /^targets\.deviceIds\[(\d+)\]$/.exec(field)?.[1];
      return index === undefined ? [] : [request.targets.deviceIds?.[Number(index)] ?? ""];
    });
    const hasNoTargets = error.faults.some(({ field }) => field === "targets");
    const missing = missingIds.length > 0 ? words.gone(missingIds.map((id) => formatMac(parseDeviceId(id)))) : null;
    const text = missing ?? (hasNoTargets ? words.noMatch : null);
    throw text === null ? error : new Problem(error.status, error.code, text);
  }
}
