/** Accessibility fixes for Swagger UI, which leaves some elements without a name or with a wrong role. Screen readers
 * need both, so they are set as elements appear. */
import { en } from "../../../text/en";

const words = en.api.rest;
const CONTROLS = ":is(input, select, textarea):not([aria-label])";

/** Fix the content of an element, now and after each change, until the returned function is called. */
export function fixAccessibility(element: HTMLElement): () => void {
  const observer = new MutationObserver(() => applyFixes(element));
  observer.observe(element, { childList: true, subtree: true });
  applyFixes(element);
  return () => observer.disconnect();
}

function applyFixes(element: HTMLElement): void {
  for (const row of element.querySelectorAll<HTMLElement>("[data-param-name], [data-property-name]")) {
    const name = row.dataset["paramName"] ?? row.dataset["propertyName"] ?? "";
    for (const control of row.querySelectorAll(CONTROLS)) control.setAttribute("aria-label", name);
  }
  for (const body of element.querySelectorAll(`.opblock-section-request-body ${CONTROLS}`)) {
    body.setAttribute("aria-label", words.body);
  }
  // These are plain tables, not regions.
  for (const table of element.querySelectorAll("table[role=region]")) table.removeAttribute("role");
  // Makes them scrollable with the arrow keys.
  for (const text of element.querySelectorAll("pre:not([tabindex])")) text.setAttribute("tabindex", "0");
}
