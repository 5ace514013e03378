/** Keys that do something on their own: one letter, or two after each other such as `g d`.
 *
 * They are silent while somebody types, in dialogs, and together with Ctrl, Alt or Cmd. Who speaks to the computer, or
 * whose hand slips, switches them off; that is kept for this browser.
 */
import { browserStorage } from "../storage";
import { isCovered } from "../components/modal";

export interface Shortcut {
  /** The keys as the browser calls them, with a blank between two. */
  readonly keys: string;
  readonly act: () => void;
  /** What the list of keys says about it; without it, the list is silent. */
  readonly text: string | undefined;
}

const KEPT = "meshfleet.keys";
const OFF = "off";
/** How long the second of two keys may take. */
const PATIENCE = 1500;
const TYPED_INTO = "input:not([type=checkbox]), textarea, select, [contenteditable], [role=textbox], [role=combobox], [role=listbox]";

class Shortcuts {
  isOn = $state(browserStorage.read(KEPT) !== OFF);
  /** What is to be had here, the newest last. */
  active = $state.raw<readonly Shortcut[]>([]);

  /** The same. Who ends while others begin must not read what is shown: Svelte shows them what was before. */
  #known: readonly Shortcut[] = [];
  #first: { key: string; at: number } | null = null;

  constructor() {
    document.addEventListener("keydown", (event) => this.#press(event));
  }

  /** Do something when a key is pressed, until the returned function is called. The newest wins. */
  add(keys: string, act: () => void, text?: string): () => void {
    const key: Shortcut = { keys, act, text };
    this.#know([...this.#known, key]);
    return () => this.#know(this.#known.filter((each) => each !== key));
  }

  switch(isOn: boolean): void {
    this.isOn = isOn;
    browserStorage.write(KEPT, isOn ? null : OFF);
  }

  #know(known: readonly Shortcut[]): void {
    this.#known = known;
    this.active = known;
  }

  #press(event: KeyboardEvent): void {
    const first = this.#first;
    if (!this.isOn || event.defaultPrevented || event.isComposing) return;
    if (event.ctrlKey || event.metaKey || event.altKey || event.key === "Shift") return;
    this.#first = null;
    if (event.target instanceof Element && event.target.closest(TYPED_INTO)) return;
    if (isCovered()) return;
    const wasFirst = first !== null && event.timeStamp - first.at < PATIENCE;
    const found = (wasFirst && this.#find(`${first.key} ${event.key}`)) || this.#find(event.key);
    if (found) {
      event.preventDefault();
      found.act();
    } else if (this.#known.some((key) => key.keys.startsWith(`${event.key} `))) {
      this.#first = { key: event.key, at: event.timeStamp };
    }
  }

  #find(keys: string): Shortcut | undefined {
    return this.#known.findLast((key) => key.keys === keys);
  }
}

export const shortcuts = new Shortcuts();
