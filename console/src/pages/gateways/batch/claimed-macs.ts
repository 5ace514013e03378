/** MACs of all claimed gateways. */
import { type Schemas, api, requireBody } from "../../../api/client";

const PAGE_SIZE = 1000;

export async function loadClaimedMacs(signal: AbortSignal): Promise<ReadonlySet<string>> {
  const macs = new Set<string>();
  let token: string | null = null;
  do {
    const query = { MaxResults: PAGE_SIZE, ...(token !== null && { NextToken: token }) };
    const page: Schemas["GatewayPage"] = requireBody(await api.GET("/api/v1/gateways", { params: { query }, signal }));
    for (const { mac } of page.items) macs.add(mac);
    token = page.nextToken;
  } while (token !== null);
  return macs;
}
