/** Search results opened last, for the same user and until the tab is closed. */
import { session } from "../../api/session.svelte";
import type { SearchResult } from "./sources";

const MAX_RESULTS = 5;

class RecentResults {
  #owner: string | null = null;
  #results: readonly SearchResult[] = [];

  get results(): readonly SearchResult[] {
    return this.#owner === (session.me?.username ?? null) ? this.#results : [];
  }

  add(choice: SearchResult): void {
    const others = this.results.filter((each) => each.href !== choice.href);
    this.#owner = session.me?.username ?? null;
    this.#results = [choice, ...others].slice(0, MAX_RESULTS);
  }
}

export const recentResults = new RecentResults();
