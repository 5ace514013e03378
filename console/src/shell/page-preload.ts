/** Preloading of pages, so that they open while the service is unreachable. A browser never repeats a failed import:
 * only a reload does. */
import { cancelRetry, retryOnReconnect } from "../api/reconnect-retries";
import { tabStorage } from "../storage";
import { pages } from "./pages";

const STORAGE_KEY = "meshfleet.reloaded";
/** Milliseconds of delay: the first page loads first, also on a slow phone. */
const PRELOAD_DELAY = 10_000;

/** Load all pages soon, one after the other, until the returned function is called. */
export function preloadPages(): () => void {
  let isOver = false;
  const timer = setTimeout(() => void fetchAll(), PRELOAD_DELAY);

  async function fetchAll(): Promise<void> {
    for (const page of pages) {
      if (isOver) return;
      // The error is shown when the page is opened.
      await page.load().catch(() => undefined);
    }
  }

  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}

/** Reload everything when the service is back, after a page could not be loaded, but only once. The returned function
 * cancels it. */
export function reloadOnReconnect(): () => void {
  const reload = (): void => {
    tabStorage.write(STORAGE_KEY, "yes");
    location.reload();
  };
  if (tabStorage.read(STORAGE_KEY) === null) retryOnReconnect(reload);
  return () => cancelRetry(reload);
}

/** Allow the next reload, after a page was loaded. */
export function clearReloadMark(): void {
  tabStorage.write(STORAGE_KEY, null);
}
