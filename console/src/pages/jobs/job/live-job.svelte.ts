/** One job, kept current. Live events carry the job and its executions, consistent at one moment. Executions by reason,
 * wait and gateway come with no event: the service counts them for the summary.
 *
 * The page shows a consistent state: live updates wait until the service has counted again, and the summary contains the
 * job of the same moment. A large job takes long to count, so its updates do not wait: the page then says when the
 * summary was counted. */
import { type Schemas, api, requireBody } from "../../../api/client";
import { Resource } from "../../../api/resource.svelte";
import { clock } from "../../../clock.svelte";
import { collectJobEvents } from "../../../jobs/job-events";
import { type Job, isFinished, countTargeted, countFinished, getPhaseKey, countAll } from "../../../jobs/states";
import { batchPerFrame } from "../../../live/frames";
import { startPolling } from "../../../live/polling";
import { live } from "../../../live/socket.svelte";

export type Summary = Schemas["JobSummary"];

/** Milliseconds over which the rate is measured, and the shortest span that gives a rate. */
const RATE_WINDOW = 120_000;
const MIN_RATE_SPAN = 15_000;
/** Milliseconds between two measurements of the rate. */
const RATE_INTERVAL = 3000;
/** Milliseconds after which a job is loaded and counted again even if nothing seems to have changed. */
const RELOAD_INTERVAL = 15_000;
/** Number of executions up to which counting takes only milliseconds: updates wait for the summary. */
const SMALL_JOB = 10_000;
/** Milliseconds that updates are held back: those of rows and of the job arrive one after the other and are counted once. */
const BATCH_DELAY = 30;
/** Milliseconds between two counts, longer the longer the last one took. Every open page makes the service count. */
const MIN_PAUSE = 250;
const MAX_PAUSE = 1000;
/** Pause after counting a large job, as a multiple of the time that counting took: the service has other work to do. */
const PAUSE_FACTOR = 20;

interface Sample {
  readonly at: number;
  /** Number of finished executions. */
  readonly finished: number;
}

export class LiveJob {
  readonly job = new Resource<Job>();
  readonly summary = new Resource<Summary>();
  /** Executions finished per minute, at each measurement; empty: not measured yet. */
  rates = $state.raw<readonly (readonly [time: number, rate: number])[]>([]);
  /** Whether the job was deleted while the page was open. */
  isDeleted = $state(false);
  /** Time at which the summary was counted, in milliseconds since 1970. */
  countedAt = $state(0);

  /** Whether job and summary agree on the state of the job and of its waves: what devices wait for depends on these. */
  readonly isSamePhase = $derived.by(() => {
    const [job, counted] = [this.job.value, this.summary.value?.job];
    return job !== null && counted !== undefined && getPhaseKey(job) === getPhaseKey(counted);
  });
  /** Whether the summary is older than the job and will stay so for a while. */
  readonly isSummaryStale = $derived.by(() => {
    const [job, counted] = [this.job.value, this.summary.value?.job];
    return this.#isLarge && job !== null && counted !== undefined && serializeCounts(job) !== serializeCounts(counted);
  });

  #samples: Sample[] = [];
  #countStartedAt = Number.NEGATIVE_INFINITY;
  /** Milliseconds that the last count took. */
  #countDuration = 0;
  /** Time of the last update that was shown without a new summary. */
  #uncountedUpdateAt = Number.NEGATIVE_INFINITY;
  #isLarge = $derived(this.job.value !== null && countAll(this.job.value.counts) > SMALL_JOB);
  /** Whether updates wait for a summary of the same moment. */
  #isCounted = $derived(!this.#isLarge && this.summary.problem === null);
  #pendingUpdates: (() => void)[] = [];
  #isFlushing = false;
  #flushTimer: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly id: string) {}

  /** Load the job and keep it current until the returned function is called. */
  start(): () => void {
    const eventBuffer = batchPerFrame((events) => {
      const { changed, deleted } = collectJobEvents(events);
      if (deleted.has(this.id)) return this.#markDeleted();
      for (const job of changed.values()) this.update(job);
    });
    const unlisten = live.subscribe({
      filter: { Types: ["job"], Jobs: [this.id] },
      onEvent: (event) => eventBuffer.add(event),
      onResync: () => void this.load(),
    });
    void this.load();
    const stopPolling = [
      startPolling(() => this.#poll(), RATE_INTERVAL),
      // The remaining time is the only field that changes without a live event.
      startPolling(async () => {
        if (this.job.value && !isFinished(this.job.value)) await this.load();
      }, RELOAD_INTERVAL),
    ];
    return () => {
      unlisten();
      for (const stop of stopPolling) stop();
      eventBuffer.stop();
      this.#stop();
    };
  }

  async load(): Promise<void> {
    if (this.isDeleted) return;
    // The summary contains the job: a job loaded before it would not agree with the summary on the page.
    if (this.summary.value !== null && this.job.problem === null && this.#isCounted) return this.queueUpdate(() => undefined);
    await this.job.load(async (signal) =>
      requireBody(await api.GET("/api/v1/jobs/{job_id}", { params: { path: { job_id: this.id } }, signal })),
    );
    if (this.job.value) await this.#recountIfDue();
  }

  /** Show a newer version of the job, from a live event or a response. */
  update(job: Job): void {
    this.queueUpdate(() => this.job.applyChange(() => job));
  }

  /** Apply an update of the job or its executions together with a summary of the same moment or a later one. */
  queueUpdate(update: () => void): void {
    if (this.isDeleted) return;
    this.#pendingUpdates.push(update);
    if (!this.#isFlushing) void this.#flushUpdates();
  }

  /** Load a new summary and apply `updates` with it, or without it if the request fails. */
  async recount(updates: readonly (() => void)[] = []): Promise<void> {
    const startedAt = (this.#countStartedAt = performance.now());
    let isApplied = false;
    const applyUpdates = (): void => {
      if (!isApplied) for (const update of updates) update();
      isApplied = true;
    };
    await this.summary.load(async (signal) => {
      const params = { path: { job_id: this.id } };
      const summary = requireBody(await api.GET("/api/v1/jobs/{job_id}/summary", { params, signal }));
      applyUpdates();
      if (this.#uncountedUpdateAt < startedAt) this.job.applyChange(() => summary.job);
      this.countedAt = clock.read();
      return summary;
    });
    applyUpdates();
    this.#countDuration = performance.now() - startedAt;
  }

  #markDeleted(): void {
    this.isDeleted = true;
    this.#stop();
  }

  #stop(): void {
    clearTimeout(this.#flushTimer);
    this.#pendingUpdates = [];
    this.job.stop();
    this.summary.stop();
  }

  async #flushUpdates(): Promise<void> {
    this.#isFlushing = true;
    while (this.#pendingUpdates.length > 0) {
      const isCounted = this.#isCounted;
      if (isCounted) await this.#waitForNextCount();
      const updates = this.#pendingUpdates;
      this.#pendingUpdates = [];
      if (isCounted) await this.recount(updates);
      else {
        for (const update of updates) update();
        this.#uncountedUpdateAt = performance.now();
      }
    }
    this.#isFlushing = false;
  }

  async #waitForNextCount(): Promise<void> {
    const pause = Math.min(Math.max(2 * this.#countDuration, MIN_PAUSE), MAX_PAUSE);
    const remaining = this.#countStartedAt + pause - performance.now();
    await new Promise((resolve) => (this.#flushTimer = setTimeout(resolve, Math.max(remaining, BATCH_DELAY))));
  }

  async #poll(): Promise<void> {
    const job = this.job.value;
    if (!job || this.isDeleted) return;
    this.#measureRate(job);
    const counted = this.summary.value?.job;
    const isSame =
      counted !== undefined && serializeCounts(counted) === serializeCounts(job) && getPhaseKey(counted) === getPhaseKey(job);
    const isDue = !isFinished(job) && performance.now() - this.#countStartedAt >= RELOAD_INTERVAL;
    if (!isSame || isDue) await this.#recountIfDue();
  }

  /** Load a new summary, unless a flush is about to do so or the last count was too recent. */
  async #recountIfDue(): Promise<void> {
    const pause = Math.max(this.#countDuration * PAUSE_FACTOR, MIN_PAUSE);
    if (!this.#isFlushing && performance.now() - this.#countStartedAt >= pause) await this.recount();
  }

  #measureRate(job: Job): void {
    const at = performance.now();
    if (job.state === "IN_PROGRESS") this.#samples.push({ at, finished: countFinished(countTargeted(job)) });
    else this.#samples = [];
    if (this.#samples.length <= 1) this.rates = [];
    this.#samples = this.#samples.filter((sample) => at - sample.at <= RATE_WINDOW);
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    if (first === undefined || last === undefined || last.at - first.at < MIN_RATE_SPAN) return;
    const rate = ((last.finished - first.finished) / (last.at - first.at)) * 60_000;
    this.rates = [...this.rates, [at, rate] as const].slice(-RATE_WINDOW / RATE_INTERVAL);
  }
}

/** Return the counts of a job as text, for comparison. */
function serializeCounts(job: Job): string {
  return JSON.stringify([job.counts, job.leftOut]);
}
