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
  #pending: AbortController | null = null;
  readonly #retry = (): void => void this.retry();
  readonly #pendingChanges = new PendingChanges<readonly Item[]>();

  /** Load a list from its first page. The previous items stay until the first response. */
  async start(fetch: FetchPage<Item>): Promise<void> {
    this.#fetch = fetch;
    this.#token = undefined;
    this.isFresh = false;
    this.hasMore = false;
    await this.#loadPage();
  }

  /** Load the same list again from its first page. */
  async reload(): Promise<void> {
    if (this.#fetch) await this.start(this.#fetch);
  }

  /** Load the next page, unless there is none or a request is pending. */
  async loadMore(): Promise<void> {
    if (this.hasMore && !this.isLoading) await this.#loadPage();
  }

  /** Repeat the request that failed. */
  async retry(): Promise<void> {
    if (!this.isLoading) await this.#loadPage();
  }

  /** Cancel the pending request and its retry. */
  stop(): void {
    cancelRetry(this.#retry);
    this.#pending?.abort();
    this.#pending = null;
    this.#pendingChanges.end();
    this.isLoading = false;
  }

  /** Replace items, such as those that a live event changed. The order is unchanged. */
  update(change: (item: Item) => Item): void {
    this.#applyChange((items) => items.map(change));
  }

  /** Remove the items that match. */
  remove(is: (item: Item) => boolean): void {
    this.#applyChange((items) => items.filter((item) => !is(item)));
  }

  /** Apply a change to the items, and to the page that is being loaded. */
  #applyChange(change: Change<readonly Item[]>): void {
    this.items = change(this.items);
    this.#pendingChanges.add(change);
  }

  async #loadPage(): Promise<void> {
    if (!this.#fetch) return;
    this.#pending?.abort();
    cancelRetry(this.#retry);
    const pending = new AbortController();
    this.#pending = pending;
    this.#pendingChanges.start();
    this.isLoading = true;
    this.problem = null;
    const isFirst = this.#token === undefined;
    try {
      const page = await this.#fetch(this.#token, pending.signal);
      if (this.#pending !== pending) return;
      const items = this.#pendingChanges.applyTo(page.items);
      this.items = isFirst ? items : [...this.items, ...items];
      this.#token = page.nextToken ?? undefined;
      this.hasMore = page.nextToken !== null;
      this.isFresh = true;
    } catch (error) {
      if (this.#pending !== pending) return;
      this.problem = describeError(error);
      retryOnReconnect(this.#retry);
    } finally {
      if (this.#pending === pending) {
        this.#pending = null;
        this.#pendingChanges.end();
        this.isLoading = false;
      }
    }
  }
}
