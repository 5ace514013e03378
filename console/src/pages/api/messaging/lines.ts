/** Lines that somebody can copy into a shell or a program: how to read and to publish at a channel. */
import { en } from "../../../text/en";
import type { Channel, Level, Who } from "./channels";
import type { Server } from "./document";
import { pythonFor } from "./python";

export interface Line {
  readonly caption: string;
  /** Whether it connects as a gateway, in the place of the real one. */
  readonly isGateway: boolean;
  readonly text: string;
}

/** What somebody filled in, by the names of levels. */
export type Filled = Readonly<Record<string, string>>;

export interface Place {
  readonly server: Server;
  /** The account of a person. */
  readonly account: string;
  /** The MAC of a gateway, where the topic names none. */
  readonly gateway: string;
}

const words = en.api.messaging.examples;
/** What is written is never guessed: nobody shall copy a line that changes what they did not choose. */
const WRITABLE = /^writable/;
const VALUE = "VALUE";
const NEEDED: ReadonlySet<string> = new Set(["id", "time", "type"]);
const TLS = "secure-mqtt";

/** The first server that these lines can connect to; in a WebSocket most programs do not speak MQTT. */
export function reachable(servers: readonly Server[]): Server | null {
  return servers.find(({ protocol }) => protocol === "mqtt" || protocol === TLS) ?? null;
}

export function linesFor(channel: Channel, filled: Filled, place: Place): readonly Line[] {
  const payload = payloadFor(channel);
  const wanted = (level: Level): string => (filled[level.name] ?? "").trim();
  const said = (level: Level): string => wanted(level) || standIn(level);
  const reader = lowest(channel.receivedBy);
  const publisher = lowest(channel.sentBy);
  const found: Line[] = [];
  if (reader !== null) {
    // A gateway hears what is for itself alone.
    const isOwn = (level: Level): boolean => reader === "gateway" && level.level === "gateway";
    const topic = topicOf(channel, (level) => (isOwn(level) ? said(level) : wanted(level) || "+"));
    const login = tokenLogin(channel, reader, said, place);
    found.push({
      caption: words.read(words.who[reader]),
      isGateway: reader === "gateway",
      text: command(`mosquitto_sub ${login}`, `-q 1 -v -t ${quoted(topic)}`),
    });
  }
  if (publisher !== null) {
    const login = tokenLogin(channel, publisher, said, place);
    const what = [`-q 1 -t ${quoted(topicOf(channel, said))}`, `-m ${quoted(JSON.stringify(payload))}`];
    found.push({
      caption: words.publish(words.who[publisher]),
      isGateway: publisher === "gateway",
      text: command(`mosquitto_pub ${login}`, ...what),
    });
  }
  const scheme = place.server.protocol === TLS ? "mqtts" : "mqtt";
  const url = `${scheme}://${encodeURIComponent(place.account)}:${words.password}@${place.server.host}`;
  const python = pythonFor(channel, url, { wanted, said, payload });
  if (python !== null) found.push({ caption: words.python, isGateway: false, text: python });
  return found;
}

/** What stands for a level that nobody filled in: an example, or its name where it has to be chosen. */
export function standIn({ level, name, examples }: Level): string {
  return WRITABLE.test(name) ? level.toUpperCase() : (examples[0] ?? level.toUpperCase());
}

/** An example. Of a request as much as it needs: keys, and ways through the mesh, are left to who knows them. */
function payloadFor({ levels, messages, operations }: Channel): Readonly<Record<string, unknown>> {
  const example = messages[0]?.examples[0]?.payload ?? {};
  if (!operations.some(({ action }) => action === "send")) return example;
  const needed = Object.entries(example).filter(([name]) => NEEDED.has(name));
  const isWrite = levels.some(({ name }) => WRITABLE.test(name));
  return { ...Object.fromEntries(needed), ...(isWrite && { value: VALUE }) };
}

/** Of those who may do it, people before gateways, and who may do least before the others. */
function lowest(who: readonly Who[]): Exclude<Who, "service"> | null {
  return who.find((each) => each !== "service" && each !== "gateway") ?? (who.includes("gateway") ? "gateway" : null);
}

function topicOf({ topic, levels }: Channel, value: (level: Level) => string): string {
  return levels.reduce((text, level) => text.replace(`{${level.level}}`, () => value(level)), topic);
}

/** A gateway logs in with its MAC, as user name and as client id. */
function tokenLogin(channel: Channel, who: Who, said: (level: Level) => string, { server, account, gateway }: Place): string {
  const at = server.host.lastIndexOf(":");
  const host = server.host.slice(0, at).replace(/^\[|\]$/g, "");
  const level = channel.levels.find((each) => each.level === "gateway");
  const mac = level ? said(level) : gateway;
  const user = who === "gateway" ? `-i ${quoted(mac)} -u ${quoted(mac)}` : `-u ${quoted(account)}`;
  const tls = server.protocol === TLS ? " --tls-use-os-certs" : "";
  return `-h ${quoted(host)} -p ${server.host.slice(at + 1)}${tls} ${user} -P ${words.password}`;
}

function command(...parts: readonly string[]): string {
  return parts.join(" \\\n  ");
}

/** A word for a shell: nothing in it means anything to it. */
function quoted(text: string): string {
  return /^[\w.:-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
