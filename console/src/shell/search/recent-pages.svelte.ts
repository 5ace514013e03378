/** Search results opened last, for the same user and until the tab is closed. */
import { session } from "../../api/session.svelte";
import type { SearchResult } from "./sources";

const KEPT = 5;

class Recent {
  #owner: string | null = null;
  #choices: readonly SearchResult[] = [];

  get choices(): readonly SearchResult[] {
    return this.#owner === (session.me?.username ?? null) ? this.#choices : [];
  }

  add(choice: SearchResult): void {
    const others = this.choices.filter((each) => each.href !== choice.href);
    this.#owner = session.me?.username ?? null;
    this.#choices = [choice, ...others].slice(0, KEPT);
  }
}

export const recent = new Recent();
