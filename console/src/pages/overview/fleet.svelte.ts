/** Data of the overview page. Only one refresh runs at a time: each loads the device summary, the lists less often. After
 * an error the older data stay. */
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
  /** Whether any gateway is connected, or was. */
  readonly hasConnected: boolean;
  /** MAC of a gateway that is not connected; null: all are connected. */
  readonly offlineMac: string | null;
  /** Whether there are more gateways than were counted. */
  readonly hasMore: boolean;
}

/** Milliseconds between two loads of the lists. */
const LIST_INTERVAL = 10_000;
const PAGE_SIZE = 100;
/** Maximum number of pages of gateways that are counted. */
const MAX_PAGES = 5;
/** Number of entries in each list. */
const LIST_SIZE = 5;
/** Number of devices up to which a changed total reloads the lists at once: a new device may be the first. */
const SMALL_FLEET = 1000;
/** States of jobs that are running, or wait for an action of a user. */
const ACTIVE_STATES: readonly JobState[] = [...STATE_GROUPS.running, ...STATE_GROUPS.paused, "CREATED", "PENDING_APPROVAL"];
/** Number of offline devices that are loaded to find the lost ones: devices that never reported do not count as lost. */
const MAX_OFFLINE = 50;

export class Fleet {
  summary = $state.raw<Summary | null>(null);
  gateways = $state.raw<Gateways | null>(null);
  /** Offline devices, the most recently disconnected first. */
  lost = $state.raw<readonly Device[] | null>(null);
  rejects = $state.raw<readonly Reject[] | null>(null);
  /** Active update jobs, the newest first. */
  jobs = $state.raw<readonly Job[]>([]);
  problem = $state<string | null>(null);

  #request: AbortController | null = null;
  #listsLoadedAt = -Infinity;
  /** State of each job in its last live event. */
  readonly #jobStates = new Map<string, JobState>();

  /** Make the next refresh load the lists too. */
  expire(): void {
    this.#listsLoadedAt = -Infinity;
  }

  /** Update listed jobs in place. A job that enters or leaves an active state expires the lists; the events that a running
   * job sends every second do not. */
  applyJobEvents({ changed, deleted }: JobEvents): void {
    this.jobs = this.jobs.filter(({ id }) => !deleted.has(id)).map((job) => changed.get(job.id) ?? job);
    for (const { id, state } of changed.values()) {
      const isListed = this.jobs.some((job) => job.id === id);
      if (isListed !== ACTIVE_STATES.includes(state) && this.#jobStates.get(id) !== state) this.expire();
      this.#jobStates.set(id, state);
    }
  }

  /** Number of devices without the gateways. */
  get devices(): number {
    return Math.max(0, (this.summary?.total ?? 0) - (this.gateways?.total ?? 0));
  }

  /** Load the data again, unless a refresh is running. Lists stay unchanged while `isInUse` returns true. */
  async refresh(isInUse: () => boolean): Promise<void> {
    if (this.#request) return;
    const request = new AbortController();
    this.#request = request;
    try {
      await this.#load(request.signal, isInUse);
      if (this.#request === request) this.problem = null;
    } catch (error) {
      if (this.#request === request) this.problem = describeError(error);
    } finally {
      if (this.#request === request) this.#request = null;
    }
  }

  stop(): void {
    this.#request?.abort();
    this.#request = null;
  }

  async #load(signal: AbortSignal, isInUse: () => boolean): Promise<void> {
    const summary = requireBody(await api.GET("/api/v1/devices/summary", { signal }));
    const areListsFresh = performance.now() - this.#listsLoadedAt < LIST_INTERVAL && !this.#hasSizeChanged(summary);
    if (areListsFresh) return this.#showSummary(summary);
    // Set before the requests: a change during them expires the lists again.
    this.#listsLoadedAt = performance.now();
    try {
      // A gateway is a device, too. Gateways are counted after devices and shown together with them: a gateway that is
      // claimed in between must not count as another device.
      const gateways = await countGateways(signal);
      this.#showSummary(summary);
      this.gateways = gateways;
      await this.#loadLists(signal, isInUse);
    } catch (error) {
      this.expire();
      throw error;
    }
  }

  /** Return whether the number of devices in a small fleet has changed: some may be gateways. */
  #hasSizeChanged({ total }: Summary): boolean {
    return total <= SMALL_FLEET && this.summary?.total !== total;
  }

  #showSummary(summary: Summary): void {
    this.summary = this.summary === null ? summary : keepSummaryOrder(this.summary, summary);
  }

  async #loadLists(signal: AbortSignal, isInUse: () => boolean): Promise<void> {
    const lost = { Connected: false, Sort: "-connectivity", MaxResults: MAX_OFFLINE, Include: "live" } as const;
    const offline = requireBody(await api.GET("/api/v1/devices", { params: { query: lost }, signal })).items;
    const active = { State: [...ACTIVE_STATES], MaxResults: LIST_SIZE };
    const jobs = requireBody(await api.GET("/api/v1/jobs", { params: { query: active }, signal })).items;
    const newest = { MaxResults: LIST_SIZE };
    const rejects = requireBody(await api.GET("/api/v1/rejects", { params: { query: newest }, signal })).items;
    if (this.lost !== null && isInUse()) return;
    this.lost = offline.filter((device) => device.live?.lastReportAt).slice(0, LIST_SIZE);
    this.rejects = rejects;
    this.jobs = jobs;
  }
}

async function countGateways(signal: AbortSignal): Promise<Gateways> {
  let total = 0;
  let offline = 0;
  let hasConnected = false;
  let offlineMac: string | null = null;
  let token: string | null = null;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const query: { MaxResults: number; NextToken?: string } = { MaxResults: PAGE_SIZE };
    if (token !== null) query.NextToken = token;
    const body: Schemas["GatewayPage"] = requireBody(await api.GET("/api/v1/gateways", { params: { query }, signal }));
    total += body.items.length;
    const disconnected = body.items.filter((gateway) => !gateway.connected);
    offline += disconnected.length;
    // A gateway that was connected once has reported its API version.
    hasConnected ||= body.items.some((gateway) => gateway.connected || gateway.apiVersion !== null);
    offlineMac ??= disconnected[0]?.mac ?? null;
    token = body.nextToken;
    if (token === null) break;
  }
  return { total, offline, hasConnected, offlineMac, hasMore: token !== null };
}

/** Return the new summary in the order of the previous one: no row moves away from under the pointer. */
function keepSummaryOrder(previous: Summary, current: Summary): Summary {
  return {
    ...current,
    models: keepOrder(previous.models, current.models),
    firmware: keepOrder(previous.firmware, current.firmware),
    labels: keepOrder(previous.labels, current.labels),
  };
}

function keepOrder(previous: readonly Share[], current: readonly Share[]): Share[] {
  const positions = new Map(previous.map((share, index) => [share.value, index]));
  return [...current].sort((a, b) => (positions.get(a.value) ?? Infinity) - (positions.get(b.value) ?? Infinity) || 0);
}
