/** Where the reader is: the path and the query of the address, and how to get to another. */
import { SvelteSet } from "svelte/reactivity";

export interface Place {
  readonly path: string;
  readonly query: URLSearchParams;
}

/** Whether one may leave; who says no tells the reader why. */
type MayLeave = () => boolean;

class Router {
  place = $state.raw<Place>(here());

  #guards = new SvelteSet<MayLeave>();

  constructor() {
    addEventListener("popstate", () => this.#arrive());
    document.addEventListener("click", (event) => this.#follow(event));
  }

  /** Whether somebody wants to be asked before the reader leaves. */
  get isGuarded(): boolean {
    return this.#guards.size > 0;
  }

  /** Ask before the reader leaves, or loads the page anew, until the returned function is called. */
  guard(mayLeave: MayLeave): () => void {
    const stay = (event: BeforeUnloadEvent): void => {
      if (!mayLeave()) event.preventDefault();
    };
    addEventListener("beforeunload", stay);
    this.#guards.add(mayLeave);
    return () => {
      removeEventListener("beforeunload", stay);
      this.#guards.delete(mayLeave);
    };
  }

  /** Go to an address of the console: to its top, unless it is more of what one looks at. */
  go(address: string, { stays = false } = {}): void {
    if (address === location.pathname + location.search || !this.#mayLeave()) return;
    history.pushState(null, "", address);
    this.place = here();
    if (!stays) scrollTo(0, 0);
  }

  /** Say with other words where one is: nothing to come back to. */
  restate(query: URLSearchParams): void {
    history.replaceState(null, "", addressOf({ path: location.pathname, query }));
    this.place = here();
  }

  /** The browser is elsewhere already: who has to stay is put back. */
  #arrive(): void {
    if (this.#mayLeave()) this.place = here();
    else history.pushState(null, "", addressOf(this.place));
  }

  #mayLeave(): boolean {
    return [...this.#guards].every((mayLeave) => mayLeave());
  }

  /** Links are followed here, unless the reader wants them elsewhere. */
  #follow(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element).closest("a");
    if (link === null || link.origin !== location.origin || link.target || link.hasAttribute("download")) return;
    if (link.pathname.startsWith("/api")) return;
    event.preventDefault();
    this.go(link.pathname + link.search);
  }
}

function addressOf({ path, query }: Place): string {
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

function here(): Place {
  return { path: location.pathname, query: new URLSearchParams(location.search) };
}

export const router = new Router();
