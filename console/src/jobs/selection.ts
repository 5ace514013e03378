/** Devices selected one by one for a new job: a few are in the address, more are kept in the tab, where a reload finds
 * them. */
import { createIdempotencyKey } from "../api/idempotency-key";
import { NamedItem } from "../storage";

/** Number of ids that fit into an address. */
const MAX_IN_ADDRESS = 20;

const selections = new NamedItem<readonly string[]>("meshfleet.selection");

/** Build the query of a new job for these devices; a changed selection keeps its name. */
export function buildSelectionQuery(ids: readonly string[], name = createIdempotencyKey()): URLSearchParams {
  if (ids.length <= MAX_IN_ADDRESS) return new URLSearchParams(ids.map((id) => ["Device", id]));
  selections.write(name, ids);
  return new URLSearchParams({ Selection: name });
}

/** Load the selection of a name; null if it belongs to another tab or was replaced. */
export function loadSelection(name: string): readonly string[] | null {
  return selections.read(name);
}
