/** Types of the parts of an AsyncAPI 3.0 document that are shown. */
export interface Reference {
  readonly $ref: string;
}

export interface Schema {
  readonly $ref?: string;
  readonly type?: string | readonly string[];
  readonly description?: string;
  readonly properties?: Readonly<Record<string, Schema>>;
  readonly required?: readonly string[];
  readonly items?: Schema;
  readonly anyOf?: readonly Schema[];
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly default?: unknown;
  readonly format?: string;
  readonly pattern?: string;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly minLength?: number;
  readonly maxLength?: number;
  readonly if?: Schema;
  readonly then?: Schema;
  readonly "x-since"?: string;
}

export interface Server {
  readonly host: string;
  readonly pathname?: string;
  readonly protocol: string;
  readonly protocolVersion: string;
  readonly description: string;
  readonly security: readonly Reference[];
}

export interface Message {
  readonly name: string;
  readonly title: string;
  readonly description: string;
  readonly payload: Schema;
  readonly examples: readonly { readonly payload: Readonly<Record<string, unknown>> }[];
}

export type Action = "send" | "receive";

export interface Operation {
  readonly action: Action;
  readonly channel: Reference;
  readonly title: string;
  readonly summary: string;
  readonly description: string;
  readonly reply?: { readonly channel: Reference };
}

export interface Parameter {
  readonly description: string;
  readonly examples: readonly string[];
}

export interface Document {
  readonly info: {
    readonly description: string;
    readonly tags: readonly { readonly name: string; readonly description: string }[];
  };
  readonly servers: Readonly<Record<string, Server>>;
  readonly channels: Readonly<
    Record<
      string,
      {
        readonly address: string;
        readonly title: string;
        readonly description: string;
        readonly messages: Readonly<Record<string, Reference>>;
        readonly parameters: Readonly<Record<string, Reference>>;
        readonly tags: readonly { readonly name: string }[];
        readonly "x-access": { readonly publish: readonly string[]; readonly read: readonly string[] };
      }
    >
  >;
  readonly operations: Readonly<Record<string, Operation>>;
  readonly components: {
    readonly schemas: Readonly<Record<string, Schema>>;
    readonly messages: Readonly<Record<string, Message>>;
    readonly parameters: Readonly<Record<string, Parameter>>;
    readonly securitySchemes: Readonly<Record<string, { readonly description: string }>>;
  };
}

/** Return the name at the end of a reference. */
export function parseRefName({ $ref }: Reference): string {
  return $ref.slice($ref.lastIndexOf("/") + 1);
}

/** Return the object that a reference names. Throws if the document lacks it. */
export function resolveReference<Value>(reference: Reference, candidates: Readonly<Record<string, Value>>): Value {
  const value = candidates[parseRefName(reference)];
  if (value === undefined) throw new Error(`the document lacks ${reference.$ref}`);
  return value;
}
