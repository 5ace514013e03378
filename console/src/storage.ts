/** What a browser keeps for us. Where it may keep nothing, as some are told to, nothing is kept, and all else works. */
export interface BrowserStorage {
  read(key: string): string | null;
  /** Null: keep it no more. */
  write(key: string, value: string | null): void;
}

function shelf(storage: () => Storage): BrowserStorage {
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
        // It holds for as long as the page is open.
      }
    },
  };
}

/** Until the tab is closed. */
export const tabStorage = shelf(() => sessionStorage);
/** For everybody who uses this browser. */
export const browserStorage = shelf(() => localStorage);

const all: { clear(): void }[] = [];

/** Keep nothing under any name any more: somebody else comes. */
export function clearNamedItems(): void {
  for (const each of all) each.clear();
}

/** The newest of a kind of things that would not fit into an address: the address names it, the tab keeps it. Where the
 * browser keeps nothing, it holds for as long as the page is open. */
export class NamedItem<Value> {
  #newest: { readonly name: string; readonly value: Value } | null = null;

  constructor(readonly key: string) {
    all.push(this);
  }

  write(name: string, value: Value): void {
    this.#newest = { name, value };
    tabStorage.write(this.key, JSON.stringify(this.#newest));
  }

  /** Null: another tab, or a time that is over, knew it. */
  read(name: string): Value | null {
    // We alone write it.
    this.#newest ??= JSON.parse(tabStorage.read(this.key) ?? "null") as { name: string; value: Value } | null;
    return this.#newest?.name === name ? this.#newest.value : null;
  }

  clear(): void {
    this.#newest = null;
    tabStorage.write(this.key, null);
  }
}
