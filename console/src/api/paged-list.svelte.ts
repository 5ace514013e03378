/** List that is loaded page by page. Responses to outdated requests are discarded; failed requests are repeated on
 * reconnect. */
import { describeError } from "./client";
import { type Change, PendingChanges } from "./pending-changes";
import { cancelRetry, retryOnReconnect } from "./reconnect-retries";

export interface Page<Item> {
  readonly items: readonly Item[];
  readonly nextToken: string | null;
}

export type FetchPage<Item> = (token: string | undefined, signal: AbortSignal) => Promise<Page<Item>>;

export class PagedList<Item> {
  items = $state.raw<readonly Item[]>([]);
  /** Whether a request is pending. */
  isLoading = $state(false);
  /** Whether the items belong to the current list; false while they are those of the previous one. */
  isFresh = $state(false);
  /** Whether there are more pages. */
  hasMore = $state(false);
  /** Error of the last request; the items are unchanged. */
  problem = $state<string | null>(null);

  #fetch: FetchPage<Item> | null = null;
  #token: string | undefined;
  #asking: AbortController | null = null;
  readonly #retry = (): void => void this.retry();
  readonly #meanwhile = new PendingChanges<readonly Item[]>();

  /** Load a list from its first page. The previous items stay until the first response. */
  async start(fetch: FetchPage<Item>): Promise<void> {
    this.#fetch = fetch;
    this.#token = undefined;
    this.isFresh = false;
    this.hasMore = false;
    await this.#read();
  }

  /** Load the same list again from its first page. */
  async reload(): Promise<void> {
    if (this.#fetch) await this.start(this.#fetch);
  }

  /** Load the next page, unless there is none or a request is pending. */
  async loadMore(): Promise<void> {
    if (this.hasMore && !this.isLoading) await this.#read();
  }

  /** Repeat the request that failed. */
  async retry(): Promise<void> {
    if (!this.isLoading) await this.#read();
  }

  /** Cancel the pending request and its retry. */
  stop(): void {
    cancelRetry(this.#retry);
    this.#asking?.abort();
    this.#asking = null;
    this.#meanwhile.end();
    this.isLoading = false;
  }

  /** Replace items, such as those that a live event changed. The order is unchanged. */
  update(change: (item: Item) => Item): void {
    this.#lay((items) => items.map(change));
  }

  /** Remove the items that match. */
  remove(is: (item: Item) => boolean): void {
    this.#lay((items) => items.filter((item) => !is(item)));
  }

  /** Apply a change to the items, and to the page that is being loaded. */
  #lay(change: Change<readonly Item[]>): void {
    this.items = change(this.items);
    this.#meanwhile.add(change);
  }

  async #read(): Promise<void> {
    if (!this.#fetch) return;
    this.#asking?.abort();
    cancelRetry(this.#retry);
    const asking = new AbortController();
    this.#asking = asking;
    this.#meanwhile.start();
    this.isLoading = true;
    this.problem = null;
    const isFirst = this.#token === undefined;
    try {
      const page = await this.#fetch(this.#token, asking.signal);
      if (this.#asking !== asking) return;
      const items = this.#meanwhile.applyTo(page.items);
      this.items = isFirst ? items : [...this.items, ...items];
      this.#token = page.nextToken ?? undefined;
      this.hasMore = page.nextToken !== null;
      this.isFresh = true;
    } catch (error) {
      if (this.#asking !== asking) return;
      this.problem = describeError(error);
      retryOnReconnect(this.#retry);
    } finally {
      if (this.#asking === asking) {
        this.#asking = null;
        this.#meanwhile.end();
        this.isLoading = false;
      }
    }
  }
}
