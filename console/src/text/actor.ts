/** Actors of audited actions: users by name, others with their kind. */
import { en } from "./en";

export type ActorKind = "user" | "api-key" | "gateway" | "program";

export interface Actor {
  readonly kind: ActorKind;
  readonly name: string;
}

const PREFIXED = /^(api-key|gateway|program): (.*)$/s;

const words = en.common.actors;
const PROGRAMS: ReadonlyMap<string, string> = new Map([
  ["service", words.service],
  ["command line", words.commandLine],
]);

/** Parse the title of an actor. User names contain no colon, so a prefix marks the other kinds. */
export function parseActor(title: string): Actor {
  const [, kind, name] = PREFIXED.exec(title) ?? [];
  if (name !== undefined && (kind === "api-key" || kind === "gateway" || kind === "program")) return { kind, name };
  return { kind: "user", name: title };
}

/** Return the text for a program. Unknown programs keep their name. */
export function programText(name: string): string {
  return PROGRAMS.get(name) ?? name;
}

/** Return the actor as part of a sentence or a table cell. */
export function actorText(title: string): string {
  const { kind, name } = parseActor(title);
  if (kind === "user") return name;
  return kind === "program" ? programText(name) : `${words[kind]} ${name}`;
}
