/** Visits of devices to a zone: who is inside, and who was there last. */
import { type Matches, fetchMatches } from "../../../../api/all-pages";
import { type Schemas, api, requireBody } from "../../../../api/client";
import { MAX_PAGE_SIZE } from "../../../../api/limits";
import { Resource } from "../../../../api/resource.svelte";
import { clock } from "../../../../clock.svelte";
import { throttleEvents } from "../../../../live/frames";
import { live } from "../../../../live/socket.svelte";

type Visit = Schemas["ZoneVisit"];

interface Visits {
  readonly inside: Matches<Visit>;
  readonly ended: Matches<Visit>;
}

const MAX_INSIDE = 100;
const MAX_ENDED = 30;
/** Milliseconds between two requests while devices come and go. */
const EVENT_PAUSE = 2000;

/** Return what tells visits to a zone apart. */
export function identify({ device, enteredAt }: Visit): string {
  return `${device} ${enteredAt}`;
}

export class ZoneVisits {
  readonly loaded = new Resource<Visits>();

  constructor(
    readonly siteId: string,
    readonly zoneId: string,
  ) {}

  /** Keep the visits up to date until the returned function is called. */
  start(): () => void {
    const changes = throttleEvents(() => EVENT_PAUSE, () => void this.load());
    const unsubscribe = live.subscribe({
      filter: { Types: ["zone"] },
      onEvent: (event) => {
        if (event.data["zone"] === this.zoneId) changes.add(event);
      },
      onResync: () => void this.load(),
    });
    void this.load();
    return () => {
      unsubscribe();
      changes.stop();
      this.loaded.stop();
    };
  }

  async load(): Promise<void> {
    await this.loaded.load(async (signal) => {
      const now = new Date(clock.read()).toISOString();
      const [inside, ended] = await Promise.all([
        this.#fetch((visit) => visit.leftAt === null, MAX_INSIDE, signal, now),
        this.#fetch((visit) => visit.leftAt !== null, MAX_ENDED, signal),
      ]);
      // A device may have left between the two responses.
      const left = new Set(ended.items.map(identify));
      return { inside: { ...inside, items: inside.items.filter((visit) => !left.has(identify(visit))) }, ended };
    });
  }

  /** Fetch the newest visits that match, of those that had not ended at a time. */
  async #fetch(
    matches: (visit: Visit) => boolean,
    most: number,
    signal: AbortSignal,
    from?: string,
  ): Promise<Matches<Visit>> {
    const path = { site_id: this.siteId, zone_id: this.zoneId };
    return fetchMatches(
      async (token) => {
        const query = { MaxResults: MAX_PAGE_SIZE, ...(from && { From: from }), ...(token && { NextToken: token }) };
        const answer = await api.GET("/api/v1/sites/{site_id}/zones/{zone_id}/visits", { params: { path, query }, signal });
        return requireBody(answer);
      },
      matches,
      most,
      signal,
    );
  }
}
