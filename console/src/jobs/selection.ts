/** Devices that were selected one by one, on their way to a new job: a few are named in the address, many would not fit
 * into it. They are kept in the tab, where a reload finds them too. */
import { createIdempotencyKey } from "../api/idempotency-key";
import { NamedItem } from "../storage";

/** So many fit into an address that people can send to each other. */
const FEW = 20;

const selections = new NamedItem<readonly string[]>("meshfleet.selection");

/** What the address of a new job says for these devices; those that are changed keep the name that they have. */
export function buildSelectionQuery(ids: readonly string[], name = createIdempotencyKey()): URLSearchParams {
  if (ids.length <= FEW) return new URLSearchParams(ids.map((id) => ["Device", id]));
  selections.write(name, ids);
  return new URLSearchParams({ Selection: name });
}

/** The devices that were kept under a name; null: another tab, or a time that is over, knew them. */
export function loadSelection(name: string): readonly string[] | null {
  return selections.read(name);
}
