/** The channels of a document, each with all that belongs to it, as people look for them. */
import { type Document, type Message, type Operation, type Parameter, nameOf, resolved } from "./document";

/** Who stands at either end: the service, a gateway, or people of a role. */
export type Who = "service" | "gateway" | "viewer" | "operator" | "admin";

export interface Level extends Parameter {
  /** How it is called in the topic. */
  readonly level: string;
  /** How its description is called; levels with the same one have the same values. */
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
  readonly sentBy: readonly Who[];
  readonly receivedBy: readonly Who[];
  /** The channels where what is asked here is answered, and those that are answered here. */
  readonly answeredAt: readonly string[];
  readonly answers: readonly string[];
}

export interface Group {
  readonly name: string;
  readonly about: string;
  readonly channels: readonly Channel[];
}

const WHO: readonly Who[] = ["service", "gateway", "viewer", "operator", "admin"];

/** All channels, in the groups that the document has for them. */
export function groupsOf(document: Document): readonly Group[] {
  const channels = Object.keys(document.channels).map((name) => ({ tags: tagsOf(document, name), channel: channelOf(document, name) }));
  const known = document.info.tags;
  const named = known.map(({ name, description }) => ({
    name,
    about: description,
    channels: channels.filter(({ tags }) => tags[0] === name).map(({ channel }) => channel),
  }));
  const rest = channels.filter(({ tags }) => !known.some(({ name }) => name === tags[0])).map(({ channel }) => channel);
  return [...named, { name: "others", about: "", channels: rest }].filter((group) => group.channels.length > 0);
}

function tagsOf(document: Document, name: string): readonly string[] {
  return document.channels[name]?.tags.map((tag) => tag.name) ?? [];
}

function channelOf(document: Document, name: string): Channel {
  const { address, title, description, messages, parameters, "x-access": access } = resolved({ $ref: name }, document.channels);
  const all = Object.values(document.operations);
  const here = all.filter((operation) => nameOf(operation.channel) === name);
  const answered = all.filter(({ reply }) => reply !== undefined && nameOf(reply.channel) === name);
  // Who asks gets the answer, and the other way round.
  const isSent = here.some(({ action }) => action === "send") || answered.some(({ action }) => action === "receive");
  const isReceived = here.some(({ action }) => action === "receive") || answered.some(({ action }) => action === "send");
  return {
    name,
    title,
    topic: address,
    about: description,
    form: "identifier" in parameters ? "raw" : "name" in parameters ? "decoded" : null,
    levels: Object.entries(parameters).map(([level, reference]) => ({
      level,
      name: nameOf(reference),
      ...resolved(reference, document.components.parameters),
    })),
    messages: Object.values(messages).map((reference) => resolved(reference, document.components.messages)),
    operations: here,
    sentBy: known([...(isSent ? ["service"] : []), ...access.publish]),
    receivedBy: known([...(isReceived ? ["service"] : []), ...access.read]),
    answeredAt: here.flatMap(({ reply }) => (reply ? [nameOf(reply.channel)] : [])),
    answers: answered.map(({ channel }) => nameOf(channel)),
  };
}

function known(names: readonly string[]): readonly Who[] {
  return WHO.filter((who) => names.includes(who));
}
