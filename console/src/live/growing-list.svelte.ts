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

  #source: ListSource<Item> | null = null;
  #pending: AbortController | null = null;
  #headProblem = $state<string | null>(null);
  /** Time of the last answered request. */
  #checkedAt = -Infinity;

  /** `countNew` applies changes to the listed items and returns the number of new ones in the head. */
  constructor(readonly countNew: (head: readonly Item[], pages: PagedList<Item>) => number) {}

  /** Error of the last request. */
  get problem(): string | null {
    return this.pages.problem ?? this.#headProblem;
  }

  /** Load a list from its first page. */
  async start(list: ListSource<Item>): Promise<void> {
    this.#cancelPending();
    this.#source = list;
    this.#headProblem = null;
    this.newCount = 0;
    const askedAt = clock.read();
    await this.pages.start(list.read);
    if (this.#source !== list) return;
    this.readCount += 1;
    if (this.pages.isFresh) this.#checkedAt = askedAt;
  }

  /** Load the same list again, with the new items. */
  async reload(): Promise<void> {
    if (this.#source) await this.start(this.#source);
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
      this.#cancelPending();
      this.pages.stop();
    };
  }

  async checkHead(): Promise<void> {
    const list = this.#source;
    if (list === null || !this.pages.isFresh || (list.until ?? Infinity) < this.#checkedAt) return;
    this.#cancelPending();
    const pending = new AbortController();
    this.#pending = pending;
    const askedAt = clock.read();
    try {
      const readHead = list.readHead ?? (async (signal) => (await list.read(undefined, signal)).items);
      const head = await readHead(pending.signal);
      if (this.#pending !== pending) return;
      this.#headProblem = null;
      if (live.state === "paused") return;
      this.#checkedAt = askedAt;
      this.newCount = this.countNew(head, this.pages);
    } catch (error) {
      if (this.#pending === pending) this.#headProblem = describeError(error);
    }
  }

  /** Cancel a pending request for the head, when the list changes or the page is left. */
  #cancelPending(): void {
    this.#pending?.abort();
    this.#pending = null;
  }
}

/** Count the items of the head whose id is not listed yet. */
export function countUnlisted(head: readonly { readonly id: unknown }[], listed: readonly { readonly id: unknown }[]): number {
  const listedIds = new Set(listed.map(({ id }) => id));
  return head.filter(({ id }) => !listedIds.has(id)).length;
}
