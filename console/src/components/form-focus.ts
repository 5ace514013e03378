/** Focus of forms that open beside their button instead of in a dialog. */
import { tick } from "svelte";

const FIELD = ":is(input, textarea, select):not(:disabled, [readonly])";

/** Focus the first field of a form that was opened: `<form {@attach focusForm}>`. When the form is closed, the focus
 * returns to where it was, or to the page if that element is gone. A button that opens a form must stay enabled: it
 * would lose the focus before that is noted. */
export function focusForm(form: HTMLElement): () => void {
  const opener = document.activeElement;
  form.querySelector<HTMLElement>(FIELD)?.focus();
  return () => void tick().then(() => restoreFocus(opener));
}

/** Focus an element if the focused one was removed; if that is not possible, the page. */
export function restoreFocus(element: Element | null | undefined, options?: FocusOptions): void {
  if (document.activeElement === document.body && element instanceof HTMLElement) element.focus(options);
  if (document.activeElement === document.body) document.querySelector("main")?.focus({ preventScroll: true });
}
