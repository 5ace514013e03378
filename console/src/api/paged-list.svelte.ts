/** A list that is read page by page. What an older question brings is never shown as the answer to a newer one. What
 * failed is asked again when the service is back. */
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
  /** Whether an answer is awaited. */
  isLoading = $state(false);
  /** Whether there is an answer to what was asked last; until then the items are older ones. */
  isFresh = $state(false);
  /** Whether there are more items than these. */
  hasMore = $state(false);
  /** Why the last question was not answered; the items stay. */
  problem = $state<string | null>(null);

  #fetch: FetchPage<Item> | null = null;
  #token: string | undefined;
  #asking: AbortController | null = null;
  readonly #retry = (): void => void this.retry();
  readonly #meanwhile = new PendingChanges<readonly Item[]>();

  /** Read a list from its beginning. Older items stay until the first answer is there. */
  async start(fetch: FetchPage<Item>): Promise<void> {
    this.#fetch = fetch;
    this.#token = undefined;
    this.isFresh = false;
    this.hasMore = false;
    await this.#read();
  }

  /** The same list anew. */
  async reload(): Promise<void> {
    if (this.#fetch) await this.start(this.#fetch);
  }

  /** The next page, if there is one and nobody waits for it already. */
  async loadMore(): Promise<void> {
    if (this.hasMore && !this.isLoading) await this.#read();
  }

  /** After a failure: the page that is missing. */
  async retry(): Promise<void> {
    if (!this.isLoading) await this.#read();
  }

  /** Let nothing come any more. */
  stop(): void {
    cancelRetry(this.#retry);
    this.#asking?.abort();
    this.#asking = null;
    this.#meanwhile.end();
    this.isLoading = false;
  }

  /** Show items otherwise, such as one that was told to have changed; their order stays. */
  update(change: (item: Item) => Item): void {
    this.#lay((items) => items.map(change));
  }

  /** Show an item no more. */
  remove(is: (item: Item) => boolean): void {
    this.#lay((items) => items.filter((item) => !is(item)));
  }

  /** It holds for what is shown, and for a page that is on its way. */
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
