/** Schemas of payloads as a tree of fields, in words. */
import { en } from "../../../text/en";
import { type Schema, resolved } from "./document";

export interface Field {
  readonly name: string;
  readonly type: string;
  readonly isRequired: boolean;
  readonly limits: readonly string[];
  readonly pattern: string | null;
  readonly since: string | null;
  readonly about: string;
  readonly fields: readonly Field[];
}

type Schemas = Readonly<Record<string, Schema>>;

const words = en.api.messaging.field;
/** Beyond these JSON has no whole numbers that every reader understands: as good as no limit. */
const SAFE = 2 ** 53;

/** The fields of an object. */
export function fieldsOf(given: Schema, schemas: Schemas): readonly Field[] {
  const schema = followed(given, schemas);
  return Object.entries(schema.properties ?? {}).map(([name, described]) => {
    const field = followed(described, schemas);
    const condition = conditionFor(schema, name);
    return {
      name,
      type: typeOf(field),
      isRequired: schema.required?.includes(name) ?? false,
      limits: [...(condition === null ? [] : [condition]), ...limitsOf(field)],
      pattern: field.pattern ?? null,
      since: field["x-since"] ?? null,
      about: described.description ?? field.description ?? "",
      fields: fieldsOf(field.items ?? field, schemas),
    };
  });
}

function followed(schema: Schema, schemas: Schemas): Schema {
  return schema.$ref === undefined ? schema : resolved({ $ref: schema.$ref }, schemas);
}

function typeOf({ type, anyOf }: Schema): string {
  if (anyOf) return [...new Set(anyOf.map(typeOf))].join(words.or);
  if (type === undefined) return words.any;
  return typeof type === "string" ? type : type.join(words.or);
}

/** What a value must be besides its type. Of several alternatives the first speaks for all. */
function limitsOf(schema: Schema): readonly string[] {
  const { format, minimum, maximum, minLength, maxLength } = schema.anyOf?.[0] ?? schema;
  const { enum: values } = schema;
  return [
    ...(format === undefined ? [] : [format]),
    ...(values === undefined ? [] : [words.oneOf(values.map((value) => JSON.stringify(value)).join(", "))]),
    ...rangeOf(minimum, maximum),
    ...lengthOf(minLength, maxLength),
    ...("default" in schema ? [words.default(JSON.stringify(schema.default))] : []),
  ];
}

function rangeOf(minimum: number | undefined, maximum: number | undefined): readonly string[] {
  const least = minimum === undefined || minimum <= -SAFE ? null : String(minimum);
  const most = maximum === undefined || maximum >= SAFE ? null : String(maximum);
  if (least !== null && most !== null) return [words.between(least, most)];
  return [...(least === null ? [] : [words.from(least)]), ...(most === null ? [] : [words.upTo(most)])];
}

function lengthOf(shortest: number | undefined, longest: number | undefined): readonly string[] {
  if (shortest !== undefined && longest !== undefined) return [words.length(shortest, longest)];
  return [
    ...(shortest === undefined ? [] : [words.shortest(shortest)]),
    ...(longest === undefined ? [] : [words.longest(longest)]),
  ];
}

/** Some fields must be there only when another has a certain value. */
function conditionFor({ if: premise, then: consequence }: Schema, name: string): string | null {
  if (!consequence?.required?.includes(name)) return null;
  const [found] = Object.entries(premise?.properties ?? {});
  return found ? words.when(found[0], JSON.stringify(found[1].const)) : null;
}
