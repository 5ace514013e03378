/** Storage of the browser. If it is disabled, nothing is stored and everything else works. */
export interface BrowserStorage {
  read(key: string): string | null;
  /** Write a value; null deletes it. */
  write(key: string, value: string | null): void;
}

function wrapStorage(storage: () => Storage): BrowserStorage {
  return {
    read(key) {
      try {
        return storage().getItem(key);
      } catch {
        return null;
      }
    },
    write(key, value) {
      try {
        if (value === null) storage().removeItem(key);
        else storage().setItem(key, value);
      } catch {
        // The value is kept only while the page is open.
      }
    },
  };
}

/** Storage of the tab, until it is closed. */
export const tabStorage = wrapStorage(() => sessionStorage);
/** Storage of the browser, shared by all its users. */
export const browserStorage = wrapStorage(() => localStorage);

const namedItems: { clear(): void }[] = [];

/** Delete all named items, when another user signs in. */
export function clearNamedItems(): void {
  for (const each of namedItems) each.clear();
}

/** Newest item of a kind that is too large for an address: the address has its name, the tab storage its value. Without
 * storage it lasts until the page is closed. */
export class NamedItem<Value> {
  #newest: { readonly name: string; readonly value: Value } | null = null;

  constructor(readonly key: string) {
    namedItems.push(this);
  }

  write(name: string, value: Value): void {
    this.#newest = { name, value };
    tabStorage.write(this.key, JSON.stringify(this.#newest));
  }

  /** Return the value of a name; null if it belongs to another tab or was replaced. */
  read(name: string): Value | null {
    // Only this class writes the key.
    this.#newest ??= JSON.parse(tabStorage.read(this.key) ?? "null") as { name: string; value: Value } | null;
    return this.#newest?.name === name ? this.#newest.value : null;
  }

  clear(): void {
    this.#newest = null;
    tabStorage.write(this.key, null);
  }
}
