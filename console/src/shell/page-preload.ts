/** Fetches pages before they are needed, so that they are there when the service is not. A browser never fetches again
 * what once failed: only a page that is loaded anew gets it. */
import { cancelRetry, retryOnReconnect } from "../api/reconnect-retries";
import { tabStorage } from "../storage";
import { pages } from "./pages";

const KEY = "meshfleet.reloaded";
/** What the first page needs comes first, also on a slow phone. */
const LATER = 10_000;

/** Fetch all pages soon, one after the other; the returned function ends it. */
export function preloadPages(): () => void {
  let isOver = false;
  const timer = setTimeout(() => void fetchAll(), LATER);

  async function fetchAll(): Promise<void> {
    for (const page of pages) {
      if (isOver) return;
      // Who opens it is told.
      await page.load().catch(() => undefined);
    }
  }

  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}

/** A page could not be fetched: load everything anew when the service is back, but not again and again. The returned
 * function ends it. */
export function reloadOnReconnect(): () => void {
  const reload = (): void => {
    tabStorage.write(KEY, "yes");
    location.reload();
  };
  if (tabStorage.read(KEY) === null) retryOnReconnect(reload);
  return () => cancelRetry(reload);
}

/** A page is there: the next one that is not may try it again. */
export function clearReloadMark(): void {
  tabStorage.write(KEY, null);
}
