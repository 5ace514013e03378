/** The address of one page. It is shown until the next one is there, and while the reader is elsewhere already its query
 * stays as it was: what the next page is asked for is none of its business, and it says nothing in its place. */
import { createContext } from "svelte";

import { router } from "./router.svelte";

export class PageAddress {
  #last = new URLSearchParams();
  readonly query = $derived.by(() => {
    if (router.location.path === this.path) this.#last = router.location.query;
    return this.#last;
  });

  constructor(readonly path: string) {}

  /** Look at something else on the same page, if one still is there; one can come back from it. */
  navigate(query: URLSearchParams): void {
    const text = query.toString();
    if (router.location.path === this.path) router.navigate(text ? `${this.path}?${text}` : this.path, { stays: true });
  }

  /** Say with other words where one is, if one still is there. */
  replaceQuery(query: URLSearchParams): void {
    if (router.location.path === this.path) router.replaceQuery(query);
  }
}

/** What a page and its parts ask for their address, and what says it to them. */
export const [pageAddress, setPageAddress] = createContext<PageAddress>();
