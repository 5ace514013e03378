/** Models and versions as people read them. */
import { catalogue } from "../api/catalogue.svelte";
import { en } from "./en";

/** What is not known of a device yet is told like this. */
const UNKNOWN: ReadonlySet<string> = new Set(["0000", "0.0.0"]);

/** Whether a model or a version is known. */
export function isKnown(value: string): boolean {
  return value !== "" && !UNKNOWN.has(value);
}

export function versionText(value: string): string {
  return isKnown(value) ? value : en.common.unknown;
}

/** A model by the name of its product and its number, or by its number alone. */
export function modelText(model: string): string {
  const product = isKnown(model) ? catalogue.product(model) : null;
  return product === null ? versionText(model) : en.common.product(product, model);
}
