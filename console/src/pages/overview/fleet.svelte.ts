/** Data of the overview page. Only one refresh runs at a time: each loads the device summary, the alarms and lists less
 * often. After an error the older data stay. */
import type { Alarm } from "../../alarms/alarm-styles";
import { type Schemas, api, requireBody, describeError } from "../../api/client";
import { clock } from "../../clock.svelte";
import { STATE_GROUPS, type JobEvents } from "../../jobs/job-events";
import type { Job, JobState } from "../../jobs/states";

export type Summary = Schemas["Summary"];
export type Share = Schemas["Share"];
export type Reject = Schemas["Reject"];

export interface Gateways {
  readonly total: number;
  readonly offline: number;
  /** Whether any gateway is connected, or was. */
  readonly hasConnected: boolean;
  /** MAC of a gateway that is not connected; null: all are connected. */
  readonly offlineMac: string | null;
  /** All gateways of a small fleet, or some of a large one that are offline. */
  readonly listed: readonly Schemas["Gateway"][];
}

export interface Attention {
  readonly verdict: Schemas["Verdict"];
  readonly checkedAt: string;
  readonly counts: Schemas["AttentionCounts"];
  /** Most urgent alarms; their rows stay while the user points at them. */
  readonly alarms: readonly Alarm[];
  /** Number of alarms that are not cleared. */
  readonly total: number;
  /** Number of silenced alarms, which are not listed. */
  readonly silenced: number;
  /** Whether alarms are sent to a channel. */
  readonly isSent: boolean;
}

/** Parts of the page that must not change while the user points at them. */
export type Part = "alarms" | "lists";

/** Milliseconds between two loads of the alarms, and of the lists. */
const LIST_INTERVAL = 10_000;
/** Maximum number of alarms that are listed. */
const MAX_ALARMS = 7;
/** Number of gateways up to which all are loaded. */
const PAGE_SIZE = 100;
/** Number of gateways that are offline that are loaded of a larger fleet. */
const MAX_OFFLINE = 10;
/** Milliseconds for which update jobs are shown after their end. */
const ENDED_INTERVAL = 24 * 3_600_000;
/** Number of entries in each list. */
const LIST_SIZE = 5;
/** Number of devices up to which changed totals reload the alarms and lists at once: a new device may be the first. */
const SMALL_FLEET = 1000;
/** States of jobs that are running, or wait for an action of a user. */
const ACTIVE_STATES: readonly JobState[] = [...STATE_GROUPS.running, ...STATE_GROUPS.paused, "CREATED", "PENDING_APPROVAL"];

export class Fleet {
  summary = $state.raw<Summary | null>(null);
  gateways = $state.raw<Gateways | null>(null);
  attention = $state.raw<Attention | null>(null);
  rejects = $state.raw<readonly Reject[] | null>(null);
  /** Active update jobs, the newest first. */
  jobs = $state.raw<readonly Job[]>([]);
  /** Update jobs that ended in the last day, the newest first. */
  endedJobs = $state.raw<readonly Job[]>([]);
  problem = $state<string | null>(null);

  #request: AbortController | null = null;
  #attentionLoadedAt = -Infinity;
  #listsLoadedAt = -Infinity;
  /** Numbers of all and of connected devices that the verdict was made of. */
  #judgedCounts: Schemas["AttentionCounts"] | null = null;
  /** State of each job in its last live event. */
  readonly #jobStates = new Map<string, JobState>();

  /** Make the next refresh load the alarms and lists too. */
  expire(): void {
    this.expireAlarms();
    this.#listsLoadedAt = -Infinity;
  }

  /** Make the next refresh load the alarms too. */
  expireAlarms(): void {
    this.#attentionLoadedAt = -Infinity;
  }

  /** Load the alarms again after the user has changed one. */
  updateAlarm(changed: Alarm): void {
    if (this.attention) this.attention = { ...this.attention, alarms: keepRows(this.attention.alarms, [changed]) };
    this.expireAlarms();
  }

  /** Update listed jobs in place. A job that enters or leaves an active state expires the lists; the events that a running
   * job sends every second do not. */
  applyJobEvents({ changed, deleted }: JobEvents): void {
    this.jobs = this.jobs.filter(({ id }) => !deleted.has(id)).map((job) => changed.get(job.id) ?? job);
    this.endedJobs = this.endedJobs.filter(({ id }) => !deleted.has(id));
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

  /** Load the data again, unless a refresh is running. Parts stay unchanged while `isInUse` returns true. */
  async refresh(isInUse: (part: Part) => boolean): Promise<void> {
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

  async #load(signal: AbortSignal, isInUse: (part: Part) => boolean): Promise<void> {
    const summary = requireBody(await api.GET("/api/v1/devices/summary", { signal }));
    if (!this.#isAttentionFresh(summary)) await this.#loadAttention(signal, isInUse);
    const areListsFresh = performance.now() - this.#listsLoadedAt < LIST_INTERVAL && !this.#hasSizeChanged(summary);
    if (areListsFresh) return this.#showSummary(summary);
    // Set before the requests: a change during them expires the lists again.
    this.#listsLoadedAt = performance.now();
    try {
      // A gateway is a device, too. Gateways are counted after devices and shown together with them: a gateway that is
      // claimed in between must not count as another device.
      const gateways = await loadGateways(this.#judgedCounts, signal);
      this.#showSummary(summary);
      this.gateways = gateways;
      await this.#loadLists(signal, isInUse);
    } catch (error) {
      this.expire();
      throw error;
    }
  }

  /** Return whether the verdict is recent. In a small fleet it has the same numbers as the summary. */
  #isAttentionFresh({ total, connected }: Summary): boolean {
    const judged = this.#judgedCounts;
    const isSame = judged?.devices === total && judged.connected === connected;
    return performance.now() - this.#attentionLoadedAt < LIST_INTERVAL && (isSame || total > SMALL_FLEET);
  }

  async #loadAttention(signal: AbortSignal, isInUse: (part: Part) => boolean): Promise<void> {
    // Set before the request: a change during it expires the alarms again.
    this.#attentionLoadedAt = performance.now();
    try {
      const { verdict, checkedAt, counts, items, more, hidden, channelsConfigured } = requireBody(await api.GET("/api/v1/attention", { signal }));
      const listed = this.attention?.alarms ?? [];
      // Acknowledged alarms come last.
      const sorted = [...items].sort((a, b) => Number(a.state === "acknowledged") - Number(b.state === "acknowledged"));
      const alarms = listed.length > 0 && isInUse("alarms") ? keepRows(listed, items) : sorted.slice(0, MAX_ALARMS);
      this.attention = {
        verdict,
        checkedAt,
        counts,
        alarms,
        total: items.length + more,
        silenced: hidden.silenced,
        isSent: channelsConfigured,
      };
      this.#judgedCounts = counts;
    } catch (error) {
      this.expireAlarms();
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

  async #loadLists(signal: AbortSignal, isInUse: (part: Part) => boolean): Promise<void> {
    const active = { State: [...ACTIVE_STATES], MaxResults: LIST_SIZE };
    const jobs = requireBody(await api.GET("/api/v1/jobs", { params: { query: active }, signal })).items;
    const over = { State: [...STATE_GROUPS.over], MaxResults: LIST_SIZE };
    const ended = requireBody(await api.GET("/api/v1/jobs", { params: { query: over }, signal })).items;
    const newest = { MaxResults: LIST_SIZE };
    const rejects = requireBody(await api.GET("/api/v1/rejects", { params: { query: newest }, signal })).items;
    if (this.rejects !== null && isInUse("lists")) return;
    this.rejects = rejects;
    this.jobs = jobs;
    const since = clock.read() - ENDED_INTERVAL;
    this.endedJobs = ended.filter(({ finishedAt }) => finishedAt !== null && Date.parse(finishedAt) > since);
  }
}

/** Load the gateways of a small fleet; of a larger one those that are offline, with the numbers of the service. */
async function loadGateways(counts: Schemas["AttentionCounts"] | null, signal: AbortSignal): Promise<Gateways> {
  const query = { MaxResults: PAGE_SIZE };
  const { items, nextToken } = requireBody(await api.GET("/api/v1/gateways", { params: { query }, signal }));
  const isSmall = nextToken === null;
  const disconnected = isSmall ? items.filter((gateway) => !gateway.connected) : await loadOffline(signal);
  return {
    total: isSmall ? items.length : (counts?.gateways ?? items.length),
    offline: isSmall || counts === null ? disconnected.length : counts.gateways - counts.gatewaysConnected,
    // A gateway that was connected once has reported its API version.
    hasConnected: items.some((gateway) => gateway.connected || gateway.apiVersion !== null),
    offlineMac: disconnected[0]?.mac ?? null,
    listed: isSmall ? items : disconnected,
  };
}

async function loadOffline(signal: AbortSignal): Promise<readonly Schemas["Gateway"][]> {
  const query = { Connected: false, MaxResults: MAX_OFFLINE };
  return requireBody(await api.GET("/api/v1/gateways", { params: { query }, signal })).items;
}

/** Return the listed alarms in their latest state. */
function keepRows(listed: readonly Alarm[], current: readonly Alarm[]): Alarm[] {
  const latest = new Map(current.map((alarm) => [alarm.id, alarm]));
  return listed.map((alarm) => latest.get(alarm.id) ?? alarm);
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
