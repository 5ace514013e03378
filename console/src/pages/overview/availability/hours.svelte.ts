/** Availability of the fleet over time, and what changed in one of its parts. */
import { type Schemas, api, requireBody } from "../../../api/client";
import { Resource } from "../../../api/resource.svelte";
import { clock } from "../../../clock.svelte";

export type Part = Schemas["AvailabilityPoint"];

/** Time spans that are shown, with the number of hours of each and of a bar. */
export const SPANS = { "24h": { hours: 24, perBar: 1 }, "7d": { hours: 168, perBar: 3 } } as const;
export type Span = keyof typeof SPANS;

const HOUR = 3_600_000;
/** Number of alarms, and of devices, that are listed of one part. */
const MAX_ALARMS = 5;
const MAX_CHANGES = 10;

export interface Changes {
  readonly part: Part;
  readonly alarms: readonly Schemas["Alarm"][];
  readonly devices: readonly Schemas["FleetConnectivityChange"][];
  readonly hasMore: boolean;
}

export class AvailabilityHours {
  span = $state<Span>("24h");
  readonly parts = new Resource<readonly Part[]>();
  /** Changes of the part that the user has chosen. */
  readonly changes = new Resource<Changes>();
  /** Start of the chosen part. */
  chosen = $state<string | null>(null);

  async load(): Promise<void> {
    const { hours, perBar } = SPANS[this.span];
    const now = clock.read();
    // The present hour is part of the last bar.
    const to = (Math.floor(now / HOUR) + 1) * HOUR;
    const query = {
      From: new Date(to - (hours + perBar) * HOUR).toISOString(),
      To: new Date(to).toISOString(),
      Points: (hours + perBar) / perBar,
    };
    await this.parts.load(async (signal) => requireBody(await api.GET("/api/v1/fleet/availability", { params: { query }, signal })).items);
  }

  async choose(part: Part | null): Promise<void> {
    this.chosen = part?.start ?? null;
    if (part === null) {
      this.changes.stop();
      return;
    }
    const times = { From: part.start, To: part.end };
    await this.changes.load(async (signal) => {
      const alarms = { ...times, State: ["open", "acknowledged", "cleared"] as ("open" | "acknowledged" | "cleared")[], MaxResults: MAX_ALARMS };
      const opened = requireBody(await api.GET("/api/v1/alarms", { params: { query: alarms }, signal }));
      const query = { ...times, MaxResults: MAX_CHANGES };
      const devices = requireBody(await api.GET("/api/v1/fleet/connectivity", { params: { query }, signal }));
      return { part, alarms: opened.items, devices: devices.items, hasMore: devices.nextToken !== null || opened.nextToken !== null };
    });
  }

  stop(): void {
    this.parts.stop();
    this.changes.stop();
  }
}

/** Return the mean share of devices that were online, of the known time; null if nothing is known. */
export function computeMean(parts: readonly Part[]): number | null {
  const known = parts.filter((part) => part.online !== null);
  const weight = known.reduce((sum, part) => sum + part.known, 0);
  return weight === 0 ? null : known.reduce((sum, part) => sum + (part.online ?? 0) * part.known, 0) / weight;
}

/** Return how many devices were offline a day ago; null if that is unknown. */
export function findOfflineYesterday(parts: readonly Part[], now: number): number | null {
  const at = now - 24 * HOUR;
  return parts.find((part) => Date.parse(part.start) <= at && at < Date.parse(part.end))?.offline ?? null;
}
