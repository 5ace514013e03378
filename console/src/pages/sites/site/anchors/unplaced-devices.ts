/** Devices without a place, which may become anchors. The service has no filter for them. */
import { type Matches, fetchMatches } from "../../../../api/all-pages";
import { type Schemas, api, requireBody } from "../../../../api/client";
import { MAX_PAGE_SIZE } from "../../../../api/limits";
import { parseMac } from "../../../../text/mac";

/** Number of devices without a place that are listed. */
const MAX_UNPLACED = 50;
/** Number of pages that are searched: behind them the user has to search by name. */
const MAX_PAGES = 10;

/** Find the first devices without a place by a part of the name or by a MAC. `placed` is the number of devices that
 * probably have one: pages are so long that the first one is enough in most fleets. */
export async function findUnplaced(text: string, placed: number, signal: AbortSignal): Promise<Matches<Schemas["Device"]>> {
  const [mac, name] = [parseMac(text), text.trim()];
  const filter = mac === null ? name && { FriendlyName: name } : { Ids: [`bmac-${mac}`] };
  const size = Math.min(MAX_PAGE_SIZE, MAX_UNPLACED + placed);
  return fetchMatches(
    async (token) => {
      const query = { Include: "live" as const, MaxResults: token ? MAX_PAGE_SIZE : size, ...(token && { NextToken: token }), ...filter };
      return requireBody(await api.GET("/api/v1/devices", { params: { query }, signal }));
    },
    (device) => !device.live?.place,
    MAX_UNPLACED,
    signal,
    MAX_PAGES,
  );
}
