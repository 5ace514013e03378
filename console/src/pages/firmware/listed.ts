/** Firmware as the catalogue lists it. No event tells what becomes of it, so it is asked for again: nobody shall take what
 * is withdrawn for released. */
import { Problem, type Schemas, api, requireBody } from "../../api/client";
import type { FetchPage, PagedList } from "../../api/paged-list.svelte";
import type { Filter } from "./filters";
import type { Firmware } from "./records";

export interface Listed extends Firmware {
  /** Whether it was deleted since it was read. */
  readonly isDeleted?: true;
}

/** So many are read at a time by who looks at them again: as many as are listed, if the service allows it. */
const LEAST = 100;
const MOST = 1000;

export function reading(filter: Filter): FetchPage<Listed> {
  return async (token, signal) => read({ ...filter, ...(token && { NextToken: token }) }, signal);
}

/** What is listed, as it is by now, and what should be since. Whoever is missing in the answer does not fit the filter any
 * more: it is asked for by itself. */
export async function lookAgain(
  filter: Filter,
  { items, hasMore }: Pick<PagedList<Listed>, "items" | "hasMore">,
  signal: AbortSignal,
): Promise<readonly Listed[]> {
  const MaxResults = Math.min(Math.max(items.length, LEAST), MOST);
  const oldest = items.at(-1)?.createdAt ?? "";
  const found = new Map<string, Listed>();
  for (let token: string | null | undefined; token !== null; ) {
    const page: Schemas["FirmwarePage"] = await read({ ...filter, MaxResults, ...(token && { NextToken: token }) }, signal);
    // What is older than all that is listed is on a page that nobody has read yet.
    for (const each of page.items) if (!hasMore || each.createdAt >= oldest) found.set(each.id, each);
    token = (page.items.at(-1)?.createdAt ?? "") < oldest ? null : page.nextToken;
  }
  for (const each of items) if (!found.has(each.id)) found.set(each.id, await readOne(each, signal));
  return [...found.values()];
}

async function read(
  query: Filter & { NextToken?: string; MaxResults?: number },
  signal: AbortSignal,
): Promise<Schemas["FirmwarePage"]> {
  return requireBody(await api.GET("/api/v1/firmware", { params: { query }, signal }));
}

async function readOne(listed: Listed, signal: AbortSignal): Promise<Listed> {
  if (listed.isDeleted) return listed;
  try {
    const params = { path: { firmware_id: listed.id } };
    return requireBody(await api.GET("/api/v1/firmware/{firmware_id}", { params, signal }));
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return { ...listed, isDeleted: true };
    throw error;
  }
}
