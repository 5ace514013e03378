/** The fleet in numbers. One question at a time: how devices are comes each time, the lists around them more rarely.
 * What could not be asked leaves the older numbers in place. */
import { type Schemas, api, requireBody, describeError } from "../../api/client";
import { STATE_GROUPS, type JobEvents } from "../../jobs/job-events";
import type { Job, JobState } from "../../jobs/states";

export type Summary = Schemas["Summary"];
export type Share = Schemas["Share"];
export type Device = Schemas["Device"];
export type Reject = Schemas["Reject"];

export interface Gateways {
  readonly total: number;
  readonly offline: number;
  /** Whether any of them is connected, or was. */
  readonly isHeard: boolean;
  /** One that is not connected; null: all are. */
  readonly away: string | null;
  /** Whether there are more than were counted. */
  readonly hasMore: boolean;
}

const LISTS_EVERY = 10_000;
const PAGE = 100;
/** So many pages of gateways are counted, and no more. */
const PAGES = 5;
const LISTED = 5;
/** Up to so many devices each new one is looked at: it may be the first. */
const SMALL = 1000;
/** Jobs in these states are under way, or wait for somebody. */
const UNDER_WAY: readonly JobState[] = [...STATE_GROUPS.running, ...STATE_GROUPS.paused, "CREATED", "PENDING_APPROVAL"];
/** So many that are offline are looked at for those: who was never heard was not lost. */
const SOUGHT = 50;

export class Fleet {
  summary = $state.raw<Summary | null>(null);
  gateways = $state.raw<Gateways | null>(null);
  /** Offline devices, the most recently lost first. */
  lost = $state.raw<readonly Device[] | null>(null);
  rejects = $state.raw<readonly Reject[] | null>(null);
  /** Update jobs that are under way, the newest first. */
  jobs = $state.raw<readonly Job[]>([]);
  problem = $state<string | null>(null);

  #asking: AbortController | null = null;
  #listedAt = -Infinity;
  /** In which state jobs were when they last spoke. */
  readonly #heard = new Map<string, JobState>();

  /** Look at the lists too, the next time. */
  expire(): void {
    this.#listedAt = -Infinity;
  }

  /** Jobs have changed: they are shown at their places. One that comes into another state may change the list; a job
   * speaks every second while it runs, and changes nothing by that. */
  hear({ changed, deleted }: JobEvents): void {
    this.jobs = this.jobs.filter(({ id }) => !deleted.has(id)).map((job) => changed.get(job.id) ?? job);
    for (const { id, state } of changed.values()) {
      const isListed = this.jobs.some((job) => job.id === id);
      if (isListed !== UNDER_WAY.includes(state) && this.#heard.get(id) !== state) this.expire();
      this.#heard.set(id, state);
    }
  }

  /** Devices that are no gateways. */
  get devices(): number {
    return Math.max(0, (this.summary?.total ?? 0) - (this.gateways?.total ?? 0));
  }

  /** Ask anew, unless somebody asks already. Lists that somebody is about to use are left as they are. */
  async refresh(isInUse: () => boolean): Promise<void> {
    if (this.#asking) return;
    const asking = new AbortController();
    this.#asking = asking;
    try {
      await this.#read(asking.signal, isInUse);
      if (this.#asking === asking) this.problem = null;
    } catch (error) {
      if (this.#asking === asking) this.problem = describeError(error);
    } finally {
      if (this.#asking === asking) this.#asking = null;
    }
  }

  stop(): void {
    this.#asking?.abort();
    this.#asking = null;
  }

  async #read(signal: AbortSignal, isInUse: () => boolean): Promise<void> {
    const summary = requireBody(await api.GET("/api/v1/devices/summary", { signal }));
    if (performance.now() - this.#listedAt < LISTS_EVERY && !this.#isOther(summary)) return this.#count(summary);
    // Whatever happens from here on may not be in the lists any more.
    this.#listedAt = performance.now();
    try {
      // A gateway is a device, too. Gateways are counted after devices and shown with them: one that was claimed
      // meanwhile is not taken for a device.
      const gateways = await countGateways(signal);
      this.#count(summary);
      this.gateways = gateways;
      await this.#readLists(signal, isInUse);
    } catch (error) {
      this.expire();
      throw error;
    }
  }

  /** Whether a small fleet has more or fewer devices than before: some may be gateways. */
  #isOther({ total }: Summary): boolean {
    return total <= SMALL && this.summary?.total !== total;
  }

  #count(summary: Summary): void {
    this.summary = this.summary === null ? summary : inOrder(this.summary, summary);
  }

  async #readLists(signal: AbortSignal, isInUse: () => boolean): Promise<void> {
    const lost = { Connected: false, Sort: "-connectivity", MaxResults: SOUGHT, Include: "live" } as const;
    const offline = requireBody(await api.GET("/api/v1/devices", { params: { query: lost }, signal })).items;
    const underWay = { State: [...UNDER_WAY], MaxResults: LISTED };
    const jobs = requireBody(await api.GET("/api/v1/jobs", { params: { query: underWay }, signal })).items;
    const newest = { MaxResults: LISTED };
    const rejects = requireBody(await api.GET("/api/v1/rejects", { params: { query: newest }, signal })).items;
    if (this.lost !== null && isInUse()) return;
    this.lost = offline.filter((device) => device.live?.lastReportAt).slice(0, LISTED);
    this.rejects = rejects;
    this.jobs = jobs;
  }
}

async function countGateways(signal: AbortSignal): Promise<Gateways> {
  let total = 0;
  let offline = 0;
  let isHeard = false;
  let away: string | null = null;
  let token: string | null = null;
  for (let page = 0; page < PAGES; page += 1) {
    const query: { MaxResults: number; NextToken?: string } = { MaxResults: PAGE };
    if (token !== null) query.NextToken = token;
    const body: Schemas["GatewayPage"] = requireBody(await api.GET("/api/v1/gateways", { params: { query }, signal }));
    total += body.items.length;
    const missing = body.items.filter((gateway) => !gateway.connected);
    offline += missing.length;
    // A gateway that was connected once has told which version it speaks.
    isHeard ||= body.items.some((gateway) => gateway.connected || gateway.apiVersion !== null);
    away ??= missing[0]?.mac ?? null;
    token = body.nextToken;
    if (token === null) break;
  }
  return { total, offline, isHeard, away, hasMore: token !== null };
}

/** New numbers in the places of the old ones: nothing moves away from under a pointer. */
function inOrder(before: Summary, now: Summary): Summary {
  return {
    ...now,
    models: placed(before.models, now.models),
    firmware: placed(before.firmware, now.firmware),
    labels: placed(before.labels, now.labels),
  };
}

function placed(before: readonly Share[], now: readonly Share[]): Share[] {
  const places = new Map(before.map((share, index) => [share.value, index]));
  return [...now].sort((a, b) => (places.get(a.value) ?? Infinity) - (places.get(b.value) ?? Infinity) || 0);
}
