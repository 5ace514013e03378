/** Schemas of payloads as a tree of fields, with their rules as text. */
import { en } from "../../../text/en";
import { type Schema, resolveReference } from "./document";

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
/** Beyond these numbers JSON integers are not portable, so a larger limit counts as none. */
const MAX_SAFE = 2 ** 53;

/** Build the fields of an object. */
export function buildFields(reference: Schema, schemas: Schemas): readonly Field[] {
  const schema = followReference(reference, schemas);
  return Object.entries(schema.properties ?? {}).map(([name, described]) => {
    const field = followReference(described, schemas);
    const condition = describeCondition(schema, name);
    return {
      name,
      type: formatType(field),
      isRequired: schema.required?.includes(name) ?? false,
      limits: [...(condition === null ? [] : [condition]), ...formatLimits(field)],
      pattern: field.pattern ?? null,
      since: field["x-since"] ?? null,
      about: described.description ?? field.description ?? "",
      fields: buildFields(field.items ?? field, schemas),
    };
  });
}

function followReference(schema: Schema, schemas: Schemas): Schema {
  return schema.$ref === undefined ? schema : resolveReference({ $ref: schema.$ref }, schemas);
}

function formatType({ type, anyOf }: Schema): string {
  if (anyOf) return [...new Set(anyOf.map(formatType))].join(words.or);
  if (type === undefined) return words.any;
  return typeof type === "string" ? type : type.join(words.or);
}

/** Return the rules of a value besides its type. Of several alternatives, the limits of the first are shown. */
function formatLimits(schema: Schema): readonly string[] {
  const { format, minimum, maximum, minLength, maxLength } = schema.anyOf?.[0] ?? schema;
  const { enum: values } = schema;
  return [
    ...(format === undefined ? [] : [format]),
    ...(values === undefined ? [] : [words.oneOf(values.map((value) => JSON.stringify(value)).join(", "))]),
    ...formatRange(minimum, maximum),
    ...formatLength(minLength, maxLength),
    ...("default" in schema ? [words.default(JSON.stringify(schema.default))] : []),
  ];
}

function formatRange(minimum: number | undefined, maximum: number | undefined): readonly string[] {
  const least = minimum === undefined || minimum <= -MAX_SAFE ? null : String(minimum);
  const most = maximum === undefined || maximum >= MAX_SAFE ? null : String(maximum);
  if (least !== null && most !== null) return [words.between(least, most)];
  return [...(least === null ? [] : [words.from(least)]), ...(most === null ? [] : [words.upTo(most)])];
}

function formatLength(shortest: number | undefined, longest: number | undefined): readonly string[] {
  if (shortest !== undefined && longest !== undefined) return [words.length(shortest, longest)];
  return [
    ...(shortest === undefined ? [] : [words.shortest(shortest)]),
    ...(longest === undefined ? [] : [words.longest(longest)]),
  ];
}

/** Return the condition under which a field is required: another field has a certain value. Null if there is none. */
function describeCondition({ if: premise, then: consequence }: Schema, name: string): string | null {
  if (!consequence?.required?.includes(name)) return null;
  const [found] = Object.entries(premise?.properties ?? {});
  return found ? words.when(found[0], JSON.stringify(found[1].const)) : null;
}
