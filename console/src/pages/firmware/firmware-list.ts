/** Firmware in the catalogue. There are no live events for firmware, so the list is polled: a withdrawn firmware must not
 * be shown as released. */
import { Problem, type Schemas, api, requireBody } from "../../api/client";
import type { FetchPage, PagedList } from "../../api/paged-list.svelte";
import type { Filter } from "./filters";
import type { Firmware } from "./records";

export interface ListedFirmware extends Firmware {
  /** Whether the firmware was deleted since it was loaded. */
  readonly isDeleted?: true;
}

/** Limits of the page size of a refresh, which requests all listed firmware at once if the service allows it. */
const MIN_PAGE_SIZE = 100;
const MAX_PAGE_SIZE = 1000;

/** Return a function that loads one page of the list. */
export function createFetch(filter: Filter): FetchPage<ListedFirmware> {
  return async (token, signal) => fetchPage({ ...filter, ...(token && { NextToken: token }) }, signal);
}

/** Return the present state of the listed firmware, and new firmware that matches the filter. Listed firmware that no longer
 * matches the filter is loaded by its id. */
export async function refreshList(
  filter: Filter,
  { items, hasMore }: Pick<PagedList<ListedFirmware>, "items" | "hasMore">,
  signal: AbortSignal,
): Promise<readonly ListedFirmware[]> {
  const MaxResults = Math.min(Math.max(items.length, MIN_PAGE_SIZE), MAX_PAGE_SIZE);
  const oldest = items.at(-1)?.createdAt ?? "";
  const found = new Map<string, ListedFirmware>();
  for (let token: string | null | undefined; token !== null; ) {
    const page: Schemas["FirmwarePage"] = await fetchPage({ ...filter, MaxResults, ...(token && { NextToken: token }) }, signal);
    // Firmware older than all listed records belongs to a page that is not loaded yet.
    for (const each of page.items) if (!hasMore || each.createdAt >= oldest) found.set(each.id, each);
    token = (page.items.at(-1)?.createdAt ?? "") < oldest ? null : page.nextToken;
  }
  for (const each of items) if (!found.has(each.id)) found.set(each.id, await refetchFirmware(each, signal));
  return [...found.values()];
}

async function fetchPage(
  query: Filter & { NextToken?: string; MaxResults?: number },
  signal: AbortSignal,
): Promise<Schemas["FirmwarePage"]> {
  return requireBody(await api.GET("/api/v1/firmware", { params: { query }, signal }));
}

/** Load listed firmware again, marked as deleted if it no longer exists. */
async function refetchFirmware(listed: ListedFirmware, signal: AbortSignal): Promise<ListedFirmware> {
  if (listed.isDeleted) return listed;
  try {
    const params = { path: { firmware_id: listed.id } };
    return requireBody(await api.GET("/api/v1/firmware/{firmware_id}", { params, signal }));
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return { ...listed, isDeleted: true };
    throw error;
  }
}
