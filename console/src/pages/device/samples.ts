/** Samples of a device: reading them in pages, finding them in live events, and telling them apart. */
import { type Schemas, api, requireJson } from "../../api/client";
import type { LiveEvent } from "../../live/socket.svelte";

export type Sample = Schemas["Sample"];

const KINDS: ReadonlySet<unknown> = new Set<Sample["kind"]>(["property", "measurement", "measurement-error", "event"]);

/** Load a page of samples of some kinds, newest first. */
export async function readSamples(
  deviceId: string,
  kinds: readonly Sample["kind"][],
  size: number,
  signal: AbortSignal,
  token?: string,
): Promise<Schemas["SamplePage"]> {
  const query = { Kind: [...kinds], MaxResults: size, ...(token === undefined ? {} : { NextToken: token }) };
  const params = { path: { device_id: deviceId }, query };
  return requireJson(await api.GET("/api/v1/devices/{device_id}/samples", { params, signal }));
}

/** Return the samples among events of type `report`. Other reports, such as heartbeats, are left out. */
export function parseSampleEvents(events: readonly LiveEvent[]): Sample[] {
  return events.map((event) => event.data).filter(isSample);
}

/** Return a key that is equal for two copies of one sample: a report can arrive twice. */
export function sampleKey(sample: Sample): string {
  return JSON.stringify([sample.time, sample.kind, sample.identifier ?? sample.name, sample.seq]);
}

function isSample(data: { [key: string]: unknown }): data is Sample {
  return KINDS.has(data["kind"]) && typeof data["time"] === "string";
}
