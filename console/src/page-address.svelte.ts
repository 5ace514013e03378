/** Address of one page. A page is shown until the next one has loaded; meanwhile its query stays unchanged and it
 * cannot change the address of the next page. */
import { createContext } from "svelte";

import { router } from "./router.svelte";

export class PageAddress {
  #lastQuery = new URLSearchParams();
  readonly query = $derived.by(() => {
    if (router.location.path === this.path) this.#lastQuery = router.location.query;
    return this.#lastQuery;
  });

  constructor(readonly path: string) {}

  /** Navigate to another query of the same page, with a history entry. Ignored after the page was left. */
  navigate(query: URLSearchParams): void {
    const text = query.toString();
    if (router.location.path === this.path) router.navigate(text ? `${this.path}?${text}` : this.path, { stays: true });
  }

  /** Replace the query of the page without a history entry. Ignored after the page was left. */
  replaceQuery(query: URLSearchParams): void {
    if (router.location.path === this.path) router.replaceQuery(query);
  }
}

/** Getter and setter of the address in the context of a page. */
export const [pageAddress, setPageAddress] = createContext<PageAddress>();
