/** The last step: the service is asked what a job would do, and then to make it. However often one presses the button,
 * it is one job: the same order has the same key. */
import { Problem, type Schemas, api, requireBody, describeError } from "../../../api/client";
import { createIdempotencyKey } from "../../../api/idempotency-key";
import { en } from "../../../text/en";
import { formatMac, parseDeviceId } from "../../../text/format";

const words = en.newJob.review;

export type NewJob = Schemas["NewJob"];
export type DryRun = Schemas["DryRun"];

/** What a job would do. Nothing is made. */
export async function tryOut(order: NewJob, signal: AbortSignal): Promise<DryRun> {
  const told = await asked(order, api.POST("/api/v1/jobs", { body: { ...order, dryRun: true }, signal }));
  if (!told.dryRun) throw new Error("a dry run made a job");
  return told;
}

export class Starting {
  isBusy = $state(false);
  problem = $state<string | null>(null);

  #asked = "";
  #key = "";

  /** Have it made; null: it was not, as far as anybody knows, or somebody waits for it already. */
  async run(order: NewJob): Promise<Schemas["Job"] | null> {
    if (this.isBusy) return null;
    this.isBusy = true;
    this.problem = null;
    const text = JSON.stringify(order);
    if (text !== this.#asked) this.#key = createIdempotencyKey();
    this.#asked = text;
    try {
      const header = { "Idempotency-Key": this.#key };
      const made = await asked(order, api.POST("/api/v1/jobs", { body: order, params: { header } }));
      if (made.dryRun) throw new Error("a job became a dry run");
      return made;
    } catch (error) {
      const isUnheard = error instanceof Problem && error.status === 0;
      this.problem = isUnheard ? `${describeError(error)} ${words.uncertain}` : describeError(error);
      return null;
    } finally {
      this.isBusy = false;
    }
  }
}

/** An answer; or what is wrong with the devices, in words for who chose them. */
async function asked<Body>(order: NewJob, answer: Promise<{ data?: Body }>): Promise<Body> {
  try {
    return requireBody(await answer);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    const gone = error.faults.flatMap(({ field }) => {
      const place = /^targets\.deviceIds\[(\d+)\]$/.exec(field)?.[1];
      return place === undefined ? [] : [order.targets.deviceIds?.[Number(place)] ?? ""];
    });
    const isNobody = error.faults.some(({ field }) => field === "targets");
    const text = gone.length > 0 ? words.gone(gone.map((id) => formatMac(parseDeviceId(id)))) : isNobody ? words.noMatch : null;
    throw text === null ? error : new Problem(error.status, error.code, text);
  }
}
