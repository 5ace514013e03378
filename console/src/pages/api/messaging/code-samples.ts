/** Code samples to copy into a shell or a program: how to subscribe to a channel and publish on it. */
import { en } from "../../../text/en";
import type { Channel, Level, Party } from "./channels";
import type { Server } from "./document";
import { buildPython } from "./python";

/** Code sample with its caption. */
export interface CodeSample {
  readonly caption: string;
  /** Whether it connects as a gateway, in place of the real one. */
  readonly isGateway: boolean;
  readonly text: string;
}

/** Values that the user filled in, by the names of levels. */
export type FilledValues = Readonly<Record<string, string>>;

/** Server, and names to log in with. */
export interface ConnectionInfo {
  readonly server: Server;
  /** User name of an account. */
  readonly account: string;
  /** MAC of a gateway, for topics that name none. */
  readonly gateway: string;
}

const words = en.api.messaging.examples;
/** Levels without example values: a copied command must not change something that the user did not choose. */
const WRITABLE = /^writable/;
const VALUE_PLACEHOLDER = "VALUE";
const REQUIRED_FIELDS: ReadonlySet<string> = new Set(["id", "time", "type"]);
const TLS = "secure-mqtt";

/** Return the first server without WebSocket, which most MQTT programs do not support; null if there is none. */
export function findServer(servers: readonly Server[]): Server | null {
  return servers.find(({ protocol }) => protocol === "mqtt" || protocol === TLS) ?? null;
}

/** Build the samples of a channel: subscribe and publish with mosquitto, and a Python program. */
export function buildCodeSamples(channel: Channel, filled: FilledValues, connection: ConnectionInfo): readonly CodeSample[] {
  const payload = buildPayload(channel);
  const filledIn = (level: Level): string => (filled[level.name] ?? "").trim();
  const filledInOrExample = (level: Level): string => filledIn(level) || pickPlaceholder(level);
  const reader = pickLeastPrivileged(channel.receivedBy);
  const publisher = pickLeastPrivileged(channel.sentBy);
  const samples: CodeSample[] = [];
  if (reader !== null) {
    // A gateway may only subscribe to its own topics.
    const isOwn = (level: Level): boolean => reader === "gateway" && level.level === "gateway";
    const topic = fillTopic(channel, (level) => (isOwn(level) ? filledInOrExample(level) : filledIn(level) || "+"));
    const login = formatLogin(channel, reader, filledInOrExample, connection);
    samples.push({
      caption: words.read(words.who[reader]),
      isGateway: reader === "gateway",
      text: joinLines(`mosquitto_sub ${login}`, `-q 1 -v -t ${quoteForShell(topic)}`),
    });
  }
  if (publisher !== null) {
    const login = formatLogin(channel, publisher, filledInOrExample, connection);
    const options = [`-q 1 -t ${quoteForShell(fillTopic(channel, filledInOrExample))}`, `-m ${quoteForShell(JSON.stringify(payload))}`];
    samples.push({
      caption: words.publish(words.who[publisher]),
      isGateway: publisher === "gateway",
      text: joinLines(`mosquitto_pub ${login}`, ...options),
    });
  }
  const scheme = connection.server.protocol === TLS ? "mqtts" : "mqtt";
  const url = `${scheme}://${encodeURIComponent(connection.account)}:${words.password}@${connection.server.host}`;
  const python = buildPython(channel, url, { filledIn, filledInOrExample, payload });
  if (python !== null) samples.push({ caption: words.python, isGateway: false, text: python });
  return samples;
}

/** Return the value of a level that is not filled in: an example, or its name in capitals if it must be chosen. */
export function pickPlaceholder({ level, name, examples }: Level): string {
  return WRITABLE.test(name) ? level.toUpperCase() : (examples[0] ?? level.toUpperCase());
}

/** Return an example payload. A request has only the required fields: keys and routes through the mesh are left out. */
function buildPayload({ levels, messages, operations }: Channel): Readonly<Record<string, unknown>> {
  const example = messages[0]?.examples[0]?.payload ?? {};
  if (!operations.some(({ action }) => action === "send")) return example;
  const required = Object.entries(example).filter(([name]) => REQUIRED_FIELDS.has(name));
  const isWrite = levels.some(({ name }) => WRITABLE.test(name));
  return { ...Object.fromEntries(required), ...(isWrite && { value: VALUE_PLACEHOLDER }) };
}

/** Return the party with the lowest privileges: users before gateways, viewers before admins. */
function pickLeastPrivileged(parties: readonly Party[]): Exclude<Party, "service"> | null {
  return parties.find((each) => each !== "service" && each !== "gateway") ?? (parties.includes("gateway") ? "gateway" : null);
}

function fillTopic({ topic, levels }: Channel, value: (level: Level) => string): string {
  return levels.reduce((text, level) => text.replace(`{${level.level}}`, () => value(level)), topic);
}

/** Return the login options. A gateway uses its MAC as user name and as client id. */
function formatLogin(channel: Channel, party: Party, filledInOrExample: (level: Level) => string, { server, account, gateway }: ConnectionInfo): string {
  const at = server.host.lastIndexOf(":");
  const host = server.host.slice(0, at).replace(/^\[|\]$/g, "");
  const level = channel.levels.find((each) => each.level === "gateway");
  const mac = level ? filledInOrExample(level) : gateway;
  const user = party === "gateway" ? `-i ${quoteForShell(mac)} -u ${quoteForShell(mac)}` : `-u ${quoteForShell(account)}`;
  const tls = server.protocol === TLS ? " --tls-use-os-certs" : "";
  return `-h ${quoteForShell(host)} -p ${server.host.slice(at + 1)}${tls} ${user} -P ${words.password}`;
}

function joinLines(...parts: readonly string[]): string {
  return parts.join(" \\\n  ");
}

/** Quote a text for a shell, if needed. */
function quoteForShell(text: string): string {
  return /^[\w.:-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
