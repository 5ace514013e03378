/** Swagger UI leaves a few things without a name, or calls them what they are not. Whoever listens to the page instead of
 * looking at it needs both, so they are mended as they appear. */
import { en } from "../../../text/en";

const words = en.api.rest;
const CONTROLS = ":is(input, select, textarea):not([aria-label])";

/** Mend what is inside of an element, now and later, until the returned function is called. */
export function mend(element: HTMLElement): () => void {
  const observer = new MutationObserver(() => mendNow(element));
  observer.observe(element, { childList: true, subtree: true });
  mendNow(element);
  return () => observer.disconnect();
}

function mendNow(element: HTMLElement): void {
  for (const row of element.querySelectorAll<HTMLElement>("[data-param-name], [data-property-name]")) {
    const name = row.dataset["paramName"] ?? row.dataset["propertyName"] ?? "";
    for (const control of row.querySelectorAll(CONTROLS)) control.setAttribute("aria-label", name);
  }
  for (const body of element.querySelectorAll(`.opblock-section-request-body ${CONTROLS}`)) {
    body.setAttribute("aria-label", words.body);
  }
  // Tables they are, and nothing else.
  for (const table of element.querySelectorAll("table[role=region]")) table.removeAttribute("role");
  // Who has no pointer scrolls them with the arrow keys.
  for (const text of element.querySelectorAll("pre:not([tabindex])")) text.setAttribute("tabindex", "0");
}
