/** Property of a request: by name or hex identifier, with its catalogue entry. */
import { type CatalogueEntry, catalogue } from "../api/catalogue.svelte";

/** Format of values: decoded values are JSON and use the name of a property, raw values are hex and use its
 * identifier. */
export type Form = "decoded" | "raw";

export interface RequestedProperty {
  readonly entry: CatalogueEntry | null;
  /** Supported formats, the preferred one first. */
  readonly forms: readonly Form[];
  readonly canRead: boolean;
  readonly canWrite: boolean;
  readonly isCommand: boolean;
  /** Identifier to use in a request, by format. */
  readonly identifiers: Readonly<Record<Form, string>>;
}

const HEX = /^(?:[0-9a-f]{2}){1,4}$/;

function isIdentifier(text: string): boolean {
  return HEX.test(text);
}

/** Return the key of a property, the same for its name and its identifier. */
export function getPropertyKey(text: string): string {
  return catalogue.find(text)?.identifier ?? text;
}

/** Parse a typed or chosen property; null if empty. As on the command line, a name is decoded and hex is raw. */
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
    forms: selectForms(entry, isIdentifier(text)),
    canRead: entry.access?.includes("r") ?? false,
    canWrite: entry.access?.includes("w") ?? false,
    isCommand: entry.kinds.includes("command"),
    identifiers: { decoded: entry.name, raw: entry.identifier },
  };
}

function selectForms(entry: CatalogueEntry, byIdentifier: boolean): readonly Form[] {
  if (entry.type === "raw") return ["raw"];
  return byIdentifier ? ["raw", "decoded"] : ["decoded", "raw"];
}
