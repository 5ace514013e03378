/** One job as it goes on: read once, then told. Beside it what no event tells, counted by the service now and then, and
 * how fast devices get through, measured while somebody looks. */
import { type Schemas, api, bodyOf } from "../../../api/client";
import { Loaded } from "../../../api/loaded.svelte";
import { jobIn } from "../../../jobs/news";
import { type Job, isOver, meantOf, overOf } from "../../../jobs/states";
import { perFrame } from "../../../live/frames";
import { regularly } from "../../../live/regularly";
import { live } from "../../../live/socket.svelte";

export type Summary = Schemas["JobSummary"];

/** Milliseconds of the past from which the rate is told, and how many there must be at least. */
const SPAN = 120_000;
const LEAST = 15_000;
/** How often the rate is looked at; and counted anew, if nothing seems to have changed. */
const EVERY = 3000;
const SELDOM = 15_000;
/** A large job takes a while to count: for so many times as long the service has other things to do. */
const REST = 20;

interface Sample {
  readonly at: number;
  readonly over: number;
}

export class WatchedJob {
  readonly job = new Loaded<Job>();
  readonly summary = new Loaded<Summary>();
  /** Devices that are over per minute, at each look; empty: not measured yet. */
  rates = $state.raw<readonly (readonly [time: number, rate: number])[]>([]);

  #samples: Sample[] = [];
  /** How the job was when it was last counted; when that was tried last, and how long it took. */
  #counted: Job | null = null;
  #countedAt = Number.NEGATIVE_INFINITY;
  #took = 0;

  constructor(readonly id: string) {}

  /** Look at it until the returned function is called. */
  begin(): () => void {
    const news = perFrame((events) => {
      const last = events.at(-1);
      if (last) this.tell(jobIn(last));
    });
    const leave = live.listen({
      filter: { Types: ["job"], Jobs: [this.id] },
      event: (event) => news.take(event),
      resync: () => void this.load(),
    });
    void this.load();
    const ends = [
      regularly(() => this.#look(), EVERY),
      // Only the time that is left changes without being told.
      regularly(async () => {
        if (this.job.value && !isOver(this.job.value)) await this.load();
      }, SELDOM),
    ];
    return () => {
      leave();
      for (const end of ends) end();
      news.stop();
      this.job.stop();
      this.summary.stop();
    };
  }

  async load(): Promise<void> {
    await this.job.load(async (signal) =>
      bodyOf(await api.GET("/api/v1/jobs/{job_id}", { params: { path: { job_id: this.id } }, signal })),
    );
    if (this.job.value) await this.#count(this.job.value);
  }

  /** The job is like this now: the service says so. */
  tell(job: Job): void {
    const before = this.job.value;
    this.job.lay(() => job);
    if (before?.state !== job.state) void this.#count(job);
  }

  async #look(): Promise<void> {
    const job = this.job.value;
    if (!job) return;
    this.#measure(job);
    await this.#count(job);
  }

  /** Have it counted, if it may have become something else. */
  async #count(job: Job): Promise<void> {
    const before = this.#counted;
    const since = performance.now() - this.#countedAt;
    const hasRested = since >= this.#took * REST;
    if (before?.state === job.state) {
      const isSame = JSON.stringify(before.counts) === JSON.stringify(job.counts);
      if (!hasRested || (isSame && (isOver(job) || since < SELDOM))) return;
    } else if (this.summary.problem !== null && !hasRested) return;
    await this.recount();
  }

  /** Have it counted now. */
  async recount(): Promise<void> {
    const job = this.job.value;
    const begun = (this.#countedAt = performance.now());
    await this.summary.load(async (signal) =>
      bodyOf(await api.GET("/api/v1/jobs/{job_id}/summary", { params: { path: { job_id: this.id } }, signal })),
    );
    this.#took = performance.now() - begun;
    if (this.summary.problem === null) this.#counted = job;
  }

  #measure(job: Job): void {
    const at = performance.now();
    if (job.state === "IN_PROGRESS") this.#samples.push({ at, over: overOf(meantOf(job)) });
    else this.#samples = [];
    if (this.#samples.length <= 1) this.rates = [];
    this.#samples = this.#samples.filter((sample) => at - sample.at <= SPAN);
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    if (first === undefined || last === undefined || last.at - first.at < LEAST) return;
    const rate = ((last.over - first.over) / (last.at - first.at)) * 60_000;
    this.rates = [...this.rates, [at, rate] as const].slice(-SPAN / EVERY);
  }
}
