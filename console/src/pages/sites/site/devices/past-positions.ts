/** Past positions of a device. */
import { type Schemas, api, requireJson } from "../../../../api/client";

export interface PastPositions {
  readonly items: readonly Schemas["PastPosition"][];
  /** Whether there are more than were loaded. */
  readonly isCut: boolean;
}

/** Maximum number of positions that are loaded, a day with one per half minute. */
const MAX_POSITIONS = 3000;

/** Load the positions of a device on a site in a range of times, the oldest first. */
export async function fetchPastPositions(
  device: string,
  siteId: string,
  [from, to]: readonly [number, number],
  signal: AbortSignal,
): Promise<PastPositions> {
  const items: Schemas["PastPosition"][] = [];
  let token: string | null = null;
  do {
    const range = { From: new Date(from).toISOString(), To: new Date(to).toISOString() };
    const query = { ...range, ...(token !== null && { NextToken: token }) };
    const params = { path: { device_id: device }, query };
    const answer = await api.GET("/api/v1/devices/{device_id}/positions", { params, signal });
    const page: Schemas["PastPositionPage"] = requireJson(answer);
    items.push(...page.items.filter(({ site }) => site === siteId));
    token = page.nextToken;
  } while (token !== null && items.length < MAX_POSITIONS);
  return { items, isCut: token !== null };
}
