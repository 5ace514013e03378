/** Where the reader is: the path and the query of the address, and how to get to another. */
import { SvelteMap } from "svelte/reactivity";

export interface PageLocation {
  readonly path: string;
  readonly query: URLSearchParams;
}

/** Whether one may leave for an address of the console, or altogether (null); who says no tells the reader why. */
type MayLeave = (to: string | null) => boolean;

class Router {
  location = $state.raw<PageLocation>(here());

  /** Those who want to be asked, and whether they guard what is shown once. */
  #guards = new SvelteMap<MayLeave, boolean>();

  constructor() {
    addEventListener("popstate", () => this.#arrive());
    document.addEventListener("click", (event) => this.#follow(event));
  }

  /** Whether somebody wants to be asked before the reader leaves. */
  get isGuarded(): boolean {
    return this.#guards.size > 0;
  }

  /** Whether something is seen, or on its way, that nobody can show again. */
  get holdsSecret(): boolean {
    return [...this.#guards.values()].includes(true);
  }

  /** Ask before the reader leaves, or loads the page anew, until the returned function is called. */
  guard(mayLeave: MayLeave, { isSecret = false } = {}): () => void {
    const stay = (event: BeforeUnloadEvent): void => {
      if (!mayLeave(null)) event.preventDefault();
    };
    addEventListener("beforeunload", stay);
    this.#guards.set(mayLeave, isSecret);
    return () => {
      removeEventListener("beforeunload", stay);
      this.#guards.delete(mayLeave);
    };
  }

  /** Go to an address of the console: to its top, unless it is more of what one looks at. */
  navigate(address: string, { stays = false } = {}): void {
    if (address === location.pathname + location.search || !this.#mayLeave(address)) return;
    history.pushState(null, "", address);
    this.location = here();
    if (!stays) scrollTo(0, 0);
  }

  /** Say with other words where one is: nothing to come back to. */
  replaceQuery(query: URLSearchParams): void {
    history.replaceState(null, "", addressOf({ path: location.pathname, query }));
    this.location = here();
  }

  /** The browser is elsewhere already: who has to stay is put back. */
  #arrive(): void {
    if (this.#mayLeave(addressOf(here()))) this.location = here();
    else history.pushState(null, "", addressOf(this.location));
  }

  #mayLeave(to: string): boolean {
    return [...this.#guards.keys()].every((mayLeave) => mayLeave(to));
  }

  /** Links are followed here, unless the reader wants them elsewhere. */
  #follow(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element).closest("a");
    if (link === null || link.origin !== location.origin || link.target || link.hasAttribute("download")) return;
    if (link.pathname.startsWith("/api/v1")) return;
    event.preventDefault();
    this.navigate(link.pathname + link.search);
  }
}

function addressOf({ path, query }: PageLocation): string {
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

function here(): PageLocation {
  return { path: location.pathname, query: new URLSearchParams(location.search) };
}

export const router = new Router();
