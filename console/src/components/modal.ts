/** A dialog above all else: the browser keeps the focus inside. When it ends, the focus goes back to where it was, or to
 * the page where that is gone: whoever uses the keyboard never starts from the top again. */
import { tick } from "svelte";

const FIELD = ":is(input, textarea, select):not(:disabled, [readonly])";
/** Where there is a choice the safe one comes first; a button by itself is none to press by mistake. */
const SAFE = "footer button:not(:disabled, :last-child)";

/** Show it. What is typed at once goes into its first field, and never to the cross that closes it. */
export function showModal(dialog: HTMLDialogElement): void {
  dialog.showModal();
  const first = dialog.querySelector<HTMLElement>(FIELD) ?? dialog.querySelector<HTMLElement>(SAFE);
  (first ?? dialog.querySelector<HTMLElement>("h2"))?.focus();
}

/** Show it, until the returned function is called. */
export function openModal(dialog: HTMLDialogElement): () => void {
  const before = document.activeElement;
  showModal(dialog);
  return () => {
    dialog.close();
    if (before instanceof HTMLElement) before.focus();
    // What had it may go together with the dialog.
    void tick().then(() => {
      if (document.activeElement === document.body) document.querySelector("main")?.focus({ preventScroll: true });
    });
  };
}

/** Whether something stands in front of the page: no key reaches what is behind it. A dialog that must not be closed is
 * closed for a moment when somebody insists: what is behind it stays inert meanwhile, and nothing else is ever inert. */
export function isCovered(): boolean {
  return document.querySelector("dialog[open], [inert]") !== null;
}
