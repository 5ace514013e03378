/** An AsyncAPI 3.0 document, as much of it as is shown. */
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

/** The last word of a reference: what it names among its like. */
export function nameOf({ $ref }: Reference): string {
  return $ref.slice($ref.lastIndexOf("/") + 1);
}

/** What a reference names; a document that refers to what it does not have is broken. */
export function resolved<Value>(reference: Reference, among: Readonly<Record<string, Value>>): Value {
  const found = among[nameOf(reference)];
  if (found === undefined) throw new Error(`the document lacks ${reference.$ref}`);
  return found;
}
