/** Channels of an AsyncAPI document, each with its messages, operations and access. */
import { type Document, type Message, type Operation, type Parameter, parseRefName, resolveReference } from "./document";

/** Party that sends or receives: the service, a gateway, or users of a role. */
export type Party = "service" | "gateway" | "viewer" | "operator" | "admin";

/** Variable level of a topic. */
export interface Level extends Parameter {
  /** Name in the topic. */
  readonly level: string;
  /** Name of its description; levels with the same description share their value. */
  readonly name: string;
}

export interface Channel {
  readonly name: string;
  readonly title: string;
  readonly topic: string;
  readonly about: string;
  readonly form: "raw" | "decoded" | null;
  readonly levels: readonly Level[];
  readonly messages: readonly Message[];
  readonly operations: readonly Operation[];
  readonly sentBy: readonly Party[];
  readonly receivedBy: readonly Party[];
  /** Channels of the responses to requests on this one; and channels of the requests to which this one has the
   * responses. */
  readonly answeredAt: readonly string[];
  readonly answers: readonly string[];
}

export interface Group {
  readonly name: string;
  readonly about: string;
  readonly channels: readonly Channel[];
}

const PARTIES: readonly Party[] = ["service", "gateway", "viewer", "operator", "admin"];

/** Return all channels in the groups of the document. */
export function buildGroups(document: Document): readonly Group[] {
  const channels = Object.keys(document.channels).map((name) => ({ tags: listTags(document, name), channel: buildChannel(document, name) }));
  const documentTags = document.info.tags;
  const namedGroups = documentTags.map(({ name, description }) => ({
    name,
    about: description,
    channels: channels.filter(({ tags }) => tags[0] === name).map(({ channel }) => channel),
  }));
  const rest = channels.filter(({ tags }) => !documentTags.some(({ name }) => name === tags[0])).map(({ channel }) => channel);
  return [...namedGroups, { name: "others", about: "", channels: rest }].filter((group) => group.channels.length > 0);
}

function listTags(document: Document, name: string): readonly string[] {
  return document.channels[name]?.tags.map((tag) => tag.name) ?? [];
}

function buildChannel(document: Document, name: string): Channel {
  const { address, title, description, messages, parameters, "x-access": access } = resolveReference({ $ref: name }, document.channels);
  const all = Object.values(document.operations);
  const ownOperations = all.filter((operation) => parseRefName(operation.channel) === name);
  const replied = all.filter(({ reply }) => reply !== undefined && parseRefName(reply.channel) === name);
  // The sender of a request receives the response, and its receiver sends it.
  const isSent = ownOperations.some(({ action }) => action === "send") || replied.some(({ action }) => action === "receive");
  const isReceived = ownOperations.some(({ action }) => action === "receive") || replied.some(({ action }) => action === "send");
  return {
    name,
    title,
    topic: address,
    about: description,
    form: "identifier" in parameters ? "raw" : "name" in parameters ? "decoded" : null,
    levels: Object.entries(parameters).map(([level, reference]) => ({
      level,
      name: parseRefName(reference),
      ...resolveReference(reference, document.components.parameters),
    })),
    messages: Object.values(messages).map((reference) => resolveReference(reference, document.components.messages)),
    operations: ownOperations,
    sentBy: selectParties([...(isSent ? ["service"] : []), ...access.publish]),
    receivedBy: selectParties([...(isReceived ? ["service"] : []), ...access.read]),
    answeredAt: ownOperations.flatMap(({ reply }) => (reply ? [parseRefName(reply.channel)] : [])),
    answers: replied.map(({ channel }) => parseRefName(channel)),
  };
}

function selectParties(names: readonly string[]): readonly Party[] {
  return PARTIES.filter((party) => names.includes(party));
}
