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
  readonly act: () => void;
  /** Text in the list of shortcuts; undefined: not listed. */
  readonly text: string | undefined;
}

const KEPT = "meshfleet.keys";
const OFF = "off";
/** Milliseconds within which the second key must follow. */
const PATIENCE = 1500;
const TYPED_INTO = "input:not([type=checkbox]), textarea, select, [contenteditable], [role=textbox], [role=combobox], [role=listbox]";

class Shortcuts {
  isOn = $state(browserStorage.read(KEPT) !== OFF);
  /** Active shortcuts, the newest last. */
  active = $state.raw<readonly Shortcut[]>([]);

  /** Copy of `active` that is not reactive: a component that is destroyed while others are created would read the old
   * state. */
  #known: readonly Shortcut[] = [];
  #first: { key: string; at: number } | null = null;

  constructor() {
    document.addEventListener("keydown", (event) => this.#press(event));
  }

  /** Call `act` when the keys are pressed, until the returned function is called. The newest shortcut wins. */
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
