/** Rows that open what they are about, wherever one clicks. Who goes by keyboard has the link in their heading. */

/** Follow the link of the row, if the click meant nothing else: a control, its cell, text to copy, another tab. */
export function openRow(event: MouseEvent): void {
  if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const { target } = event;
  if (!(target instanceof Element) || target.closest("a, button, input, label, td:has(input)")) return;
  if (getSelection()?.isCollapsed === false) return;
  target.closest("tbody tr")?.querySelector<HTMLElement>("th a")?.click();
}
