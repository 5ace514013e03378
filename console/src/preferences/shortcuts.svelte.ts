/** Keyboard shortcuts: a single key, or two in sequence such as `g d`.
 *
 * They are inactive while the user types, in dialogs, and with Ctrl, Alt or Cmd. Users of speech input, or of unsteady
 * hands, can switch them off; the browser stores that.
 */
import { browserStorage } from "../storage";
import { isCovered } from "../components/modal";

export interface Shortcut {
  /** Keys as the browser names them, separated by a blank. */
  readonly keys: string;
  readonly action: () => void;
  /** Text in the list of shortcuts; undefined: not listed. */
  readonly text: string | undefined;
}

const STORAGE_KEY = "meshfleet.keys";
const OFF = "off";
/** Milliseconds within which the second key must follow. */
const SEQUENCE_TIMEOUT = 1500;
const TEXT_INPUTS = "input:not([type=checkbox]), textarea, select, [contenteditable], [role=textbox], [role=combobox], [role=listbox]";

class Shortcuts {
  isOn = $state(browserStorage.read(STORAGE_KEY) !== OFF);
  /** Active shortcuts, the newest last. */
  active = $state.raw<readonly Shortcut[]>([]);

  /** Copy of `active` that is not reactive: a component that is destroyed while others are created would read the old
   * state. */
  #active: readonly Shortcut[] = [];
  #firstKey: { key: string; at: number } | null = null;

  constructor() {
    document.addEventListener("keydown", (event) => this.#handleKey(event));
  }

  /** Call `action` when the keys are pressed, until the returned function is called. The newest shortcut wins. */
  add(keys: string, action: () => void, text?: string): () => void {
    const key: Shortcut = { keys, action, text };
    this.#setActive([...this.#active, key]);
    return () => this.#setActive(this.#active.filter((each) => each !== key));
  }

  switch(isOn: boolean): void {
    this.isOn = isOn;
    browserStorage.write(STORAGE_KEY, isOn ? null : OFF);
  }

  #setActive(known: readonly Shortcut[]): void {
    this.#active = known;
    this.active = known;
  }

  #handleKey(event: KeyboardEvent): void {
    const first = this.#firstKey;
    if (!this.isOn || event.defaultPrevented || event.isComposing) return;
    if (event.ctrlKey || event.metaKey || event.altKey || event.key === "Shift") return;
    this.#firstKey = null;
    if (event.target instanceof Element && event.target.closest(TEXT_INPUTS)) return;
    if (isCovered()) return;
    const wasFirst = first !== null && event.timeStamp - first.at < SEQUENCE_TIMEOUT;
    const found = (wasFirst && this.#find(`${first.key} ${event.key}`)) || this.#find(event.key);
    if (found) {
      event.preventDefault();
      found.action();
    } else if (this.#active.some((key) => key.keys.startsWith(`${event.key} `))) {
      this.#firstKey = { key: event.key, at: event.timeStamp };
    }
  }

  #find(keys: string): Shortcut | undefined {
    return this.#active.findLast((key) => key.keys === keys);
  }
}

export const shortcuts = new Shortcuts();
