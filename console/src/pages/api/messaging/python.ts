/** Example programs for `Mesh` of the Python client. `Mesh` sends requests to one gateway at a time, and has no
 * diagnostics. */
import type { Channel, Level } from "./channels";

interface Values {
  /** Value that the user filled in, or an empty text. */
  readonly filledIn: (level: Level) => string;
  /** Value that the user filled in, or an example. */
  readonly filledInOrExample: (level: Level) => string;
  readonly payload: Readonly<Record<string, unknown>>;
}

const TOPIC = /^(?:(?<prefix>.+)\/)?mt\/gateway\/\{gateway\}\/(?<branch>device|request|response)\/\{device\}\/(?<word>[a-z-]+)/;

/** Build a program that receives or publishes on a channel; null where `Mesh` does not support it. */
export function buildPython(channel: Channel, url: string, values: Values): string | null {
  const { prefix, branch, word } = TOPIC.exec(channel.topic)?.groups ?? {};
  if (branch === undefined || word === undefined) return null;
  const lines = branch === "device" ? buildReportLoop(channel, word, values) : buildRequest(channel, word, values);
  const mesh = prefix === undefined ? formatLiteral(url) : `${formatLiteral(url)}, prefix=${formatLiteral(prefix)}`;
  return [
    "import asyncio",
    "",
    "from meshfleet.client import Mesh",
    "",
    "",
    "async def main() -> None:",
    `    async with Mesh(${mesh}) as mesh:`,
    ...lines.map((line) => `        ${line}`),
    "",
    "",
    "asyncio.run(main())",
  ].join("\n");
}

/** Build the lines that receive reports. */
function buildReportLoop({ levels }: Channel, kind: string, { filledIn }: Values): readonly string[] {
  const filters = levels
    .filter((level) => (level.level === "gateway" || level.level === "device") && filledIn(level) !== "")
    .map((level) => `${level.level}=${formatLiteral(filledIn(level))}`);
  return [
    `async for report in mesh.reports(${[...filters, `kinds=${formatLiteral(kind)}`].join(", ")}):`,
    "    print(report.gateway, report.device, report.identifier, report.body)",
  ];
}

/** Build the lines of a request. For a channel of responses too: a request returns its response. */
function buildRequest({ levels }: Channel, word: string, { filledInOrExample, payload }: Values): readonly string[] {
  const operation = word.replace(/-decoded$/, "");
  const addressees = levels.filter((level) => operation !== "apiversion" || level.level === "gateway").map((level) => formatLiteral(filledInOrExample(level)));
  if (operation === "ack") return [`await mesh.ack(${[...addressees, `time=${formatLiteral(payload["time"])}`].join(", ")})`];
  const value = operation === "write" ? [formatLiteral(payload["value"] ?? "VALUE")] : [];
  return [`response = await mesh.${operation}(${[...addressees, ...value].join(", ")})`, "print(response)"];
}

/** Format a value as a Python literal. */
function formatLiteral(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(formatLiteral).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value)
    .map(([key, each]) => `${JSON.stringify(key)}: ${formatLiteral(each)}`)
    .join(", ")}}`;
}
