/** What a browser keeps for us. Where it may keep nothing, as some are told to, nothing is kept, and all else works. */
export interface Shelf {
  read(key: string): string | null;
  /** Null: keep it no more. */
  keep(key: string, value: string | null): void;
}

function shelf(storage: () => Storage): Shelf {
  return {
    read(key) {
      try {
        return storage().getItem(key);
      } catch {
        return null;
      }
    },
    keep(key, value) {
      try {
        if (value === null) storage().removeItem(key);
        else storage().setItem(key, value);
      } catch {
        // It holds for as long as the page is open.
      }
    },
  };
}

/** Until the tab is closed. */
export const inTab = shelf(() => sessionStorage);
/** For everybody who uses this browser. */
export const inBrowser = shelf(() => localStorage);
