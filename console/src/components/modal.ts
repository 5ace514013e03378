/** Modal dialogs. The browser keeps the focus inside; on close the focus returns to where it was, or to the page if
 * that element is gone, so that keyboard users never start from the top. */
import { tick } from "svelte";

const FIELD = ":is(input, textarea, select):not(:disabled, [readonly])";
/** The first of several buttons is the safe one; a single button is not focused, to avoid pressing it by mistake. */
const SAFE = "footer button:not(:disabled, :last-child)";

/** Show a dialog and focus its first field, or its safe button, but never the close button. */
export function showModal(dialog: HTMLDialogElement): void {
  dialog.showModal();
  const first = dialog.querySelector<HTMLElement>(FIELD) ?? dialog.querySelector<HTMLElement>(SAFE);
  (first ?? dialog.querySelector<HTMLElement>("h2"))?.focus();
}

/** Show a dialog until the returned function is called. */
export function openModal(dialog: HTMLDialogElement): () => void {
  const focused = document.activeElement;
  showModal(dialog);
  return () => {
    dialog.close();
    if (focused instanceof HTMLElement) focused.focus();
    // The element that had the focus may be removed together with the dialog.
    void tick().then(() => {
      if (document.activeElement === document.body) document.querySelector("main")?.focus({ preventScroll: true });
    });
  };
}

/** Return whether a dialog covers the page, so that shortcuts must not act. A dialog that must stay open is closed for
 * a moment on a second Esc; the page is inert meanwhile, and only then. */
export function isCovered(): boolean {
  return document.querySelector("dialog[open], [inert]") !== null;
}
