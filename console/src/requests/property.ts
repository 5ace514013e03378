/** What a request is about: a property by its name or by its hex identifier, and what the catalogue knows of it. */
import { type CatalogueEntry, catalogue } from "../api/catalogue.svelte";

/** Decoded values are JSON and go by the name of a property, raw ones are hex and go by its identifier. */
export type Form = "decoded" | "raw";

export interface RequestedProperty {
  readonly entry: CatalogueEntry | null;
  /** The forms in which it can be asked for, the better one first. */
  readonly forms: readonly Form[];
  readonly canRead: boolean;
  readonly canWrite: boolean;
  readonly isCommand: boolean;
  /** What it is called in a request of some form. */
  readonly identifiers: Readonly<Record<Form, string>>;
}

const HEX = /^(?:[0-9a-f]{2}){1,4}$/;

/** Tell a raw identifier from a name. */
function isIdentifier(text: string): boolean {
  return HEX.test(text);
}

/** Under what the same property is known, whether somebody calls it by its name or by its identifier. */
export function getPropertyKey(text: string): string {
  return catalogue.find(text)?.identifier ?? text;
}

/** What somebody typed or picked; null: nothing. As on the command line, a name is decoded and hex is raw. */
export function parseProperty(typed: string): RequestedProperty | null {
  const text = isIdentifier(typed.trim().toLowerCase()) ? typed.trim().toLowerCase() : typed.trim();
  if (text === "") return null;
  const entry = catalogue.find(text);
  if (entry === null) {
    const forms: readonly Form[] = isIdentifier(text) ? ["raw"] : ["decoded"];
    return { entry, forms, canRead: true, canWrite: true, isCommand: false, identifiers: { decoded: text, raw: text } };
  }
  return {
    entry,
    forms: formsOf(entry, isIdentifier(text)),
    canRead: entry.access?.includes("r") ?? false,
    canWrite: entry.access?.includes("w") ?? false,
    isCommand: entry.kinds.includes("command"),
    identifiers: { decoded: entry.name, raw: entry.identifier },
  };
}

function formsOf(entry: CatalogueEntry, byIdentifier: boolean): readonly Form[] {
  if (entry.type === "raw") return ["raw"];
  return byIdentifier ? ["raw", "decoded"] : ["decoded", "raw"];
}
