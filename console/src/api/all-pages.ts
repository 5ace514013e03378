/** Lists that a page needs completely, or the first items of which that match. */
import type { FetchPage } from "./paged-list.svelte";

export interface Matches<Item> {
  readonly items: readonly Item[];
  /** Whether there may be more. */
  readonly isCut: boolean;
}

/** Load all pages of a list, one after the other. */
export async function fetchAllPages<Item>(fetchPage: FetchPage<Item>, signal: AbortSignal): Promise<readonly Item[]> {
  return (await fetchMatches(fetchPage, () => true, Infinity, signal)).items;
}

/** Load pages of a list until enough items match, or until `maxPages` have been loaded. */
export async function fetchMatches<Item>(
  fetchPage: FetchPage<Item>,
  matches: (item: Item) => boolean,
  most: number,
  signal: AbortSignal,
  maxPages = Infinity,
): Promise<Matches<Item>> {
  const found: Item[] = [];
  let [token, pages]: [string | undefined, number] = [undefined, 0];
  do {
    const page = await fetchPage(token, signal);
    found.push(...page.items.filter(matches));
    token = page.nextToken ?? undefined;
    pages += 1;
  } while (token !== undefined && found.length < most && pages < maxPages);
  return { items: found.slice(0, most), isCut: token !== undefined || found.length > most };
}
