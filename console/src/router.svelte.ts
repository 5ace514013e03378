/** Router: path and query of the address, navigation, and guards that can prevent leaving. */
import { SvelteMap } from "svelte/reactivity";

export interface PageLocation {
  readonly path: string;
  readonly query: URLSearchParams;
}

/** Return whether the user can leave for an address of the console, or close the page (null). If not, the guard shows
 * why. */
type LeaveGuard = (to: string | null) => boolean;

class Router {
  location = $state.raw<PageLocation>(readLocation());

  /** Active guards, and whether each protects a secret that is shown once. */
  #guards = new SvelteMap<LeaveGuard, boolean>();

  constructor() {
    addEventListener("popstate", () => this.#handlePopState());
    document.addEventListener("click", (event) => this.#followLink(event));
  }

  /** Whether a guard is active. */
  get isGuarded(): boolean {
    return this.#guards.size > 0;
  }

  /** Whether a secret is shown or being created that cannot be shown again. */
  get holdsSecret(): boolean {
    return [...this.#guards.values()].includes(true);
  }

  /** Call `canLeave` before the user leaves or reloads, until the returned function is called. */
  guard(canLeave: LeaveGuard, { isSecret = false } = {}): () => void {
    const stay = (event: BeforeUnloadEvent): void => {
      if (!canLeave(null)) event.preventDefault();
    };
    addEventListener("beforeunload", stay);
    this.#guards.set(canLeave, isSecret);
    return () => {
      removeEventListener("beforeunload", stay);
      this.#guards.delete(canLeave);
    };
  }

  /** Navigate to an address of the console, and scroll to its top unless `stays` is set. */
  navigate(address: string, { stays = false } = {}): void {
    if (address === location.pathname + location.search || !this.#canLeave(address)) return;
    history.pushState(null, "", address);
    this.location = readLocation();
    if (!stays) scrollTo(0, 0);
  }

  /** Replace the query without a history entry. */
  replaceQuery(query: URLSearchParams): void {
    history.replaceState(null, "", formatAddress({ path: location.pathname, query }));
    this.location = readLocation();
  }

  /** Handle back and forward. The browser has moved already, so a guarded page pushes its address again. */
  #handlePopState(): void {
    if (this.#canLeave(formatAddress(readLocation()))) this.location = readLocation();
    else history.pushState(null, "", formatAddress(this.location));
  }

  #canLeave(to: string): boolean {
    return [...this.#guards.keys()].every((canLeave) => canLeave(to));
  }

  /** Follow links of the console, unless the user opens them in another tab or downloads them. */
  #followLink(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = (event.target as Element).closest("a");
    if (link === null || link.origin !== location.origin || link.target || link.hasAttribute("download")) return;
    if (link.pathname.startsWith("/api/v1")) return;
    event.preventDefault();
    this.navigate(link.pathname + link.search);
  }
}

function formatAddress({ path, query }: PageLocation): string {
  const text = query.toString();
  return text ? `${path}?${text}` : path;
}

function readLocation(): PageLocation {
  return { path: location.pathname, query: new URLSearchParams(location.search) };
}

export const router = new Router();
