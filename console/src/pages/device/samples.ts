/** Samples: page by page, as they come live, and how one is told from another. */
import { type Schemas, api, requireBody } from "../../api/client";
import type { LiveEvent } from "../../live/socket.svelte";

export type Sample = Schemas["Sample"];

const KINDS: ReadonlySet<unknown> = new Set<Sample["kind"]>(["property", "measurement", "measurement-error", "event"]);

/** A page of samples of some kinds, the newest first. */
export async function readSamples(
  deviceId: string,
  kinds: readonly Sample["kind"][],
  size: number,
  signal: AbortSignal,
  token?: string,
): Promise<Schemas["SamplePage"]> {
  const query = { Kind: [...kinds], MaxResults: size, ...(token === undefined ? {} : { NextToken: token }) };
  const params = { path: { device_id: deviceId }, query };
  const page = requireBody(await api.GET("/api/v1/devices/{device_id}/samples", { params, signal }));
  // The same address also speaks CSV, to those who ask for it.
  if (typeof page === "string") throw new Error("the service answered with CSV");
  return page;
}

/** The samples among reports: others, such as heartbeats, have other kinds. */
export function samplesTold(events: readonly LiveEvent[]): Sample[] {
  return events.map((event) => event.data).filter(isSample);
}

/** What makes a sample itself: a report that comes twice is one sample. */
export function sampleKey(sample: Sample): string {
  return JSON.stringify([sample.time, sample.kind, sample.identifier ?? sample.name, sample.seq]);
}

function isSample(data: { [key: string]: unknown }): data is Sample {
  return KINDS.has(data["kind"]) && typeof data["time"] === "string";
}
