/** A list that grows at its head while somebody reads it page by page, and no event tells. So its head is looked at again
 * and again: what came since is counted, and waits until somebody wants to see it, since rows do not move. */
import { describeError } from "../api/client";
import { type FetchPage, PagedList } from "../api/paged-list.svelte";
import { clock } from "../clock.svelte";
import { startPolling } from "./polling";
import { live } from "./socket.svelte";

export interface ListSource<Item> {
  readonly read: FetchPage<Item>;
  /** What stands at its head by now; without one, its first page. */
  readonly readHead?: (signal: AbortSignal) => Promise<readonly Item[]>;
  /** The moment after which nothing comes any more, in milliseconds since 1970. */
  readonly until?: number;
}

export class GrowingList<Item> {
  readonly pages = new PagedList<Item>();
  /** How many came since it was read. */
  newCount = $state(0);
  /** How often it was read from its beginning. Rows that have no name of their own are others then. */
  readCount = $state(0);

  #list: ListSource<Item> | null = null;
  #looking: AbortController | null = null;
  #missed = $state<string | null>(null);
  /** When the last question was asked that has an answer. */
  #seenAt = -Infinity;

  /** `take` shows what changed in what is listed, and says how many of the head are new. */
  constructor(readonly countNew: (head: readonly Item[], pages: PagedList<Item>) => number) {}

  /** Why the last question was not answered. */
  get problem(): string | null {
    return this.pages.problem ?? this.#missed;
  }

  /** Read a list from its beginning. */
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

  /** The same list anew, with what came. */
  async reload(): Promise<void> {
    if (this.#list) await this.start(this.#list);
  }

  /** After a failure. */
  async retry(): Promise<void> {
    if (this.pages.problem === null) await this.checkHead();
    else await this.pages.retry();
  }

  /** Look at the head startPolling, until the returned function is called. */
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

  /** Whoever asks for another list, or leaves, wants no answer about this one. */
  #rest(): void {
    this.#looking?.abort();
    this.#looking = null;
  }
}

/** How many are not listed yet, of items that have an id. */
export function countUnlisted(head: readonly { readonly id: unknown }[], listed: readonly { readonly id: unknown }[]): number {
  const known = new Set(listed.map(({ id }) => id));
  return head.filter(({ id }) => !known.has(id)).length;
}
