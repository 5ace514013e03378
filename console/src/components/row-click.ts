/** Rows that open their link when clicked anywhere. Keyboard users use the link in the row heading. */

/** Follow the link of a row, unless the click was on a control or its cell, selected text, or opens another tab. */
export function openRow(event: MouseEvent): void {
  if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const { target } = event;
  if (!(target instanceof Element) || target.closest("a, button, input, label, td:has(input)")) return;
  if (getSelection()?.isCollapsed === false) return;
  target.closest("tbody tr")?.querySelector<HTMLElement>("th a")?.click();
}
