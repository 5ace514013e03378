/** Lists of limited length that a page needs completely. */
import type { FetchPage } from "./paged-list.svelte";

/** Load all pages of a list, one after the other. */
export async function fetchAllPages<Item>(fetchPage: FetchPage<Item>, signal: AbortSignal): Promise<readonly Item[]> {
  const items: Item[] = [];
  let token: string | undefined;
  do {
    const page = await fetchPage(token, signal);
    items.push(...page.items);
    token = page.nextToken ?? undefined;
  } while (token !== undefined);
  return items;
}
