/** One job as it goes on. Live events tell the job and its executions, all of one moment; how executions divide by
 * reason, wait and gateway is told by no event and counted by the service.
 *
 * What belongs together is shown together: news wait until the service has counted anew, and its count brings the job
 * of the same moment. A large job takes long to count, and its news do not wait: the page says when it was counted. */
import { type Schemas, api, requireBody } from "../../../api/client";
import { Resource } from "../../../api/resource.svelte";
import { clock } from "../../../clock.svelte";
import { collectJobEvents } from "../../../jobs/job-events";
import { type Job, isFinished, countTargeted, countFinished, getPhaseKey, countAll } from "../../../jobs/states";
import { batchPerFrame } from "../../../live/frames";
import { startPolling } from "../../../live/polling";
import { live } from "../../../live/socket.svelte";

export type Summary = Schemas["JobSummary"];

/** Milliseconds of the past from which the rate is told, and how many there must be at least. */
const SPAN = 120_000;
const LEAST = 15_000;
/** How often the rate is looked at; and counted anew, if nothing seems to have changed. */
const EVERY = 3000;
const SELDOM = 15_000;
/** Executions of a job that are counted in some milliseconds: news wait for the count. */
const FEW = 10_000;
/** Milliseconds that news are held: those of rows and of the job come one after the other and are counted once. */
const HELD = 30;
/** Milliseconds between two counts, the more the longer the last one took. Every open page counts. */
const LEAST_REST = 250;
const MOST_REST = 1000;
/** A large job takes a while to count: for so many times as long the service has other things to do. */
const REST = 20;

interface Sample {
  readonly at: number;
  readonly over: number;
}

export class WatchedJob {
  readonly job = new Resource<Job>();
  readonly summary = new Resource<Summary>();
  /** Devices that are over per minute, at each look; empty: not measured yet. */
  rates = $state.raw<readonly (readonly [time: number, rate: number])[]>([]);
  /** Whether somebody deleted it while it was looked at. */
  isDeleted = $state(false);
  /** When the summary was counted, in milliseconds since 1970. */
  countedAt = $state(0);

  /** Whether the summary tells of the same waves and the same rest or motion as the job does: what devices wait for
   * depends on these. */
  readonly isOfPhase = $derived.by(() => {
    const [job, counted] = [this.job.value, this.summary.value?.job];
    return job !== null && counted !== undefined && getPhaseKey(job) === getPhaseKey(counted);
  });
  /** Whether the summary is older than the job, and stays so for a while. */
  readonly isBehind = $derived.by(() => {
    const [job, counted] = [this.job.value, this.summary.value?.job];
    return this.#isLarge && job !== null && counted !== undefined && countsOf(job) !== countsOf(counted);
  });

  #samples: Sample[] = [];
  #triedAt = Number.NEGATIVE_INFINITY;
  #took = 0;
  /** When something was shown that no count brought. */
  #shownAt = Number.NEGATIVE_INFINITY;
  #isLarge = $derived(this.job.value !== null && countAll(this.job.value.counts) > FEW);
  #held: (() => void)[] = [];
  #isShowing = false;
  #resting: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly id: string) {}

  /** Look at it until the returned function is called. */
  begin(): () => void {
    const news = batchPerFrame((events) => {
      const { changed, deleted } = collectJobEvents(events);
      if (deleted.has(this.id)) return this.#leave();
      for (const job of changed.values()) this.show(() => this.job.applyChange(() => job));
    });
    const leave = live.subscribe({
      filter: { Types: ["job"], Jobs: [this.id] },
      onEvent: (event) => news.add(event),
      onResync: () => void this.load(),
    });
    void this.load();
    const ends = [
      startPolling(() => this.#look(), EVERY),
      // Only the time that is left changes without being told.
      startPolling(async () => {
        if (this.job.value && !isFinished(this.job.value)) await this.load();
      }, SELDOM),
    ];
    return () => {
      leave();
      for (const end of ends) end();
      news.stop();
      this.#stop();
    };
  }

  async load(): Promise<void> {
    if (this.isDeleted) return;
    await this.job.load(async (signal) =>
      requireBody(await api.GET("/api/v1/jobs/{job_id}", { params: { path: { job_id: this.id } }, signal })),
    );
    if (this.job.value) await this.#count();
  }

  /** The job is like this now: the service says so. */
  tell(job: Job): void {
    this.show(() => this.job.applyChange(() => job));
  }

  /** Show news about the job or its executions, with the count of the same moment or a later one. */
  show(news: () => void): void {
    if (this.isDeleted) return;
    this.#held.push(news);
    if (!this.#isShowing) void this.#showAll();
  }

  /** Have it counted now. `news` are shown with the count, or without one if it fails. */
  async recount(news: readonly (() => void)[] = []): Promise<void> {
    const begun = (this.#triedAt = performance.now());
    let isShown = false;
    const showNews = (): void => {
      if (!isShown) for (const each of news) each();
      isShown = true;
    };
    await this.summary.load(async (signal) => {
      const params = { path: { job_id: this.id } };
      const summary = requireBody(await api.GET("/api/v1/jobs/{job_id}/summary", { params, signal }));
      showNews();
      if (this.#shownAt < begun) this.job.applyChange(() => summary.job);
      this.countedAt = clock.read();
      return summary;
    });
    showNews();
    this.#took = performance.now() - begun;
  }

  #leave(): void {
    this.isDeleted = true;
    this.#stop();
  }

  #stop(): void {
    clearTimeout(this.#resting);
    this.#held = [];
    this.job.stop();
    this.summary.stop();
  }

  async #showAll(): Promise<void> {
    this.#isShowing = true;
    while (this.#held.length > 0) {
      const isCounted = !this.#isLarge && this.summary.problem === null;
      if (isCounted) await this.#rest();
      const held = this.#held;
      this.#held = [];
      if (isCounted) await this.recount(held);
      else {
        for (const each of held) each();
        this.#shownAt = performance.now();
      }
    }
    this.#isShowing = false;
  }

  async #rest(): Promise<void> {
    const pause = Math.min(Math.max(2 * this.#took, LEAST_REST), MOST_REST);
    const left = this.#triedAt + pause - performance.now();
    await new Promise((resolve) => (this.#resting = setTimeout(resolve, Math.max(left, HELD))));
  }

  async #look(): Promise<void> {
    const job = this.job.value;
    if (!job || this.isDeleted) return;
    this.#measure(job);
    const counted = this.summary.value?.job;
    const isSame = counted !== undefined && countsOf(counted) === countsOf(job) && getPhaseKey(counted) === getPhaseKey(job);
    if (!isSame || (!isFinished(job) && performance.now() - this.#triedAt >= SELDOM)) await this.#count();
  }

  /** Have it counted, unless that is done already or was done too recently. */
  async #count(): Promise<void> {
    const pause = Math.max(this.#took * REST, LEAST_REST);
    if (!this.#isShowing && performance.now() - this.#triedAt >= pause) await this.recount();
  }

  #measure(job: Job): void {
    const at = performance.now();
    if (job.state === "IN_PROGRESS") this.#samples.push({ at, over: countFinished(countTargeted(job)) });
    else this.#samples = [];
    if (this.#samples.length <= 1) this.rates = [];
    this.#samples = this.#samples.filter((sample) => at - sample.at <= SPAN);
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    if (first === undefined || last === undefined || last.at - first.at < LEAST) return;
    const rate = ((last.over - first.over) / (last.at - first.at)) * 60_000;
    this.rates = [...this.rates, [at, rate] as const].slice(-SPAN / EVERY);
  }
}

function countsOf(job: Job): string {
  return JSON.stringify([job.counts, job.leftOut]);
}
