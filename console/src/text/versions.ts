/** Models and versions as text, and version comparison. */
import { catalogue } from "../api/catalogue.svelte";
import { en } from "./en";

/** Placeholders of the service for an unknown model or version. */
const PLACEHOLDERS: ReadonlySet<string> = new Set(["0000", "0.0.0"]);

/** Return whether a model or version is known. */
export function isKnown(value: string): boolean {
  return value !== "" && !PLACEHOLDERS.has(value);
}

export function versionText(value: string): string {
  return isKnown(value) ? value : en.common.unknown;
}

/** Return the product name and number of a model, or its number alone. */
export function modelText(model: string): string {
  const product = isKnown(model) ? catalogue.getProductName(model) : null;
  return product === null ? versionText(model) : en.common.product(product, model);
}

/** Major, minor, patch, and beta number; a release has RELEASE, which is higher than any beta number. */
export type Version = readonly [number, number, number, number];

const VERSION = /^(\d{1,5})\.(\d{1,5})(?:\.(\d{1,5})(?:-beta\.(\d{1,3}))?)?$/;
const RELEASE = 256;

/** Parse a version such as `3.4.2`, `3.4.2-beta.1` or `3.4`, by the rules of the service. Return null if invalid. */
export function parseVersion(text: string): Version | null {
  const found = VERSION.exec(text);
  if (found === null) return null;
  const beta = found[4] === undefined ? RELEASE : Number(found[4]);
  if (found[4] !== undefined && (beta < 1 || beta >= RELEASE)) return null;
  return [Number(found[1]), Number(found[2]), Number(found[3] ?? 0), beta];
}

/** Return whether a version is older than another. */
export function isOlder(one: Version, other: Version): boolean {
  const index = one.findIndex((part, index) => part !== other[index]);
  return index !== -1 && (one[index] ?? 0) < (other[index] ?? 0);
}

export function isBeta(version: Version): boolean {
  return version[3] !== RELEASE;
}
