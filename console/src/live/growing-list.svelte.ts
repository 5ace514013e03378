/** Paged list that grows at its head without live events. The head is polled; new items are counted and shown on
 * request, since visible rows must not move. */
import { describeError } from "../api/client";
import { type FetchPage, PagedList } from "../api/paged-list.svelte";
import { clock } from "../clock.svelte";
import { startPolling } from "./polling";
import { live } from "./socket.svelte";

export interface ListSource<Item> {
  readonly read: FetchPage<Item>;
  /** Read the current head of the list; by default its first page. */
  readonly readHead?: (signal: AbortSignal) => Promise<readonly Item[]>;
  /** Time after which no items are added, in milliseconds since 1970. */
  readonly until?: number;
}

export class GrowingList<Item> {
  readonly pages = new PagedList<Item>();
  /** Number of new items since the list was read. */
  newCount = $state(0);
  /** Number of times the list was read from its start, a key for rows without an id. */
  readCount = $state(0);

  #list: ListSource<Item> | null = null;
  #looking: AbortController | null = null;
  #missed = $state<string | null>(null);
  /** Time of the last answered request. */
  #seenAt = -Infinity;

  /** `countNew` applies changes to the listed items and returns the number of new ones in the head. */
  constructor(readonly countNew: (head: readonly Item[], pages: PagedList<Item>) => number) {}

  /** Error of the last request. */
  get problem(): string | null {
    return this.pages.problem ?? this.#missed;
  }

  /** Load a list from its first page. */
  async start(list: ListSource<Item>): Promise<void> {
    this.#rest();
    this.#list = list;
    this.#missed = null;
    this.newCount = 0;
    const askedAt = clock.read();
    await this.pages.start(list.read);
    if (this.#list !== list) return;
    this.readCount += 1;
    if (this.pages.isFresh) this.#seenAt = askedAt;
  }

  /** Load the same list again, with the new items. */
  async reload(): Promise<void> {
    if (this.#list) await this.start(this.#list);
  }

  /** Repeat the request that failed. */
  async retry(): Promise<void> {
    if (this.pages.problem === null) await this.checkHead();
    else await this.pages.retry();
  }

  /** Poll the head every `every` milliseconds, until the returned function is called. */
  watch(every?: number): () => void {
    const end = startPolling(() => this.checkHead(), every);
    return () => {
      end();
      this.#rest();
      this.pages.stop();
    };
  }

  async checkHead(): Promise<void> {
    const list = this.#list;
    if (list === null || !this.pages.isFresh || (list.until ?? Infinity) < this.#seenAt) return;
    this.#rest();
    const looking = new AbortController();
    this.#looking = looking;
    const askedAt = clock.read();
    try {
      const look = list.readHead ?? (async (signal) => (await list.read(undefined, signal)).items);
      const head = await look(looking.signal);
      if (this.#looking !== looking) return;
      this.#missed = null;
      if (live.state === "paused") return;
      this.#seenAt = askedAt;
      this.newCount = this.countNew(head, this.pages);
    } catch (error) {
      if (this.#looking === looking) this.#missed = describeError(error);
    }
  }

  /** Cancel a pending request for the head, when the list changes or the page is left. */
  #rest(): void {
    this.#looking?.abort();
    this.#looking = null;
  }
}

/** Count the items of the head whose id is not listed yet. */
export function countUnlisted(head: readonly { readonly id: unknown }[], listed: readonly { readonly id: unknown }[]): number {
  const known = new Set(listed.map(({ id }) => id));
  return head.filter(({ id }) => !known.has(id)).length;
}
