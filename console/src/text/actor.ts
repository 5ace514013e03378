/** Who did something, as the service names them: people by their names, all others with what they are. */
import { en } from "./en";

export type ActorKind = "user" | "api-key" | "gateway" | "program";

export interface Actor {
  readonly kind: ActorKind;
  readonly name: string;
}

const OTHERS = /^(api-key|gateway|program): (.*)$/s;

const words = en.common.actors;
const PROGRAMS: ReadonlyMap<string, string> = new Map([
  ["service", words.service],
  ["command line", words.commandLine],
]);

/** Names of people have no colon. */
export function parseActor(title: string): Actor {
  const [, kind, name] = OTHERS.exec(title) ?? [];
  if (name !== undefined && (kind === "api-key" || kind === "gateway" || kind === "program")) return { kind, name };
  return { kind: "user", name: title };
}

/** A program of ours in plain words; of another one nobody knows more than its name. */
export function programText(name: string): string {
  return PROGRAMS.get(name) ?? name;
}

/** Who did something, as part of a sentence or in a column. */
export function actorText(title: string): string {
  const { kind, name } = parseActor(title);
  if (kind === "user") return name;
  return kind === "program" ? programText(name) : `${words[kind]} ${name}`;
}
