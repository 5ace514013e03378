/** The same for `Mesh` of our client for Python. It asks one gateway at a time, and leaves diagnostics to gateways. */
import type { Channel, Level } from "./channels";

interface Values {
  /** What somebody filled in, or nothing. */
  readonly wanted: (level: Level) => string;
  /** The same, or an example. */
  readonly said: (level: Level) => string;
  readonly payload: Readonly<Record<string, unknown>>;
}

const TOPIC = /^(?:(?<prefix>.+)\/)?mt\/gateway\/\{gateway\}\/(?<sort>device|request|response)\/\{device\}\/(?<word>[a-z-]+)/;

/** A program that hears or asks what a channel is for; null where `Mesh` does not. */
export function pythonFor(channel: Channel, url: string, values: Values): string | null {
  const { prefix, sort, word } = TOPIC.exec(channel.topic)?.groups ?? {};
  if (sort === undefined || word === undefined) return null;
  const inside = sort === "device" ? hearing(channel, word, values) : asking(channel, word, values);
  const mesh = prefix === undefined ? literal(url) : `${literal(url)}, prefix=${literal(prefix)}`;
  return [
    "import asyncio",
    "",
    "from meshfleet.client import Mesh",
    "",
    "",
    "async def main() -> None:",
    `    async with Mesh(${mesh}) as mesh:`,
    ...inside.map((line) => `        ${line}`),
    "",
    "",
    "asyncio.run(main())",
  ].join("\n");
}

function hearing({ levels }: Channel, kind: string, { wanted }: Values): readonly string[] {
  const filters = levels
    .filter((level) => (level.level === "gateway" || level.level === "device") && wanted(level) !== "")
    .map((level) => `${level.level}=${literal(wanted(level))}`);
  return [
    `async for report in mesh.reports(${[...filters, `kinds=${literal(kind)}`].join(", ")}):`,
    "    print(report.gateway, report.device, report.identifier, report.body)",
  ];
}

/** Of an answer, the question that brings it: it is what the question returns. */
function asking({ levels }: Channel, word: string, { said, payload }: Values): readonly string[] {
  const operation = word.replace(/-decoded$/, "");
  const whom = levels.filter((level) => operation !== "apiversion" || level.level === "gateway").map((level) => literal(said(level)));
  if (operation === "ack") return [`await mesh.ack(${[...whom, `time=${literal(payload["time"])}`].join(", ")})`];
  const value = operation === "write" ? [literal(payload["value"] ?? "VALUE")] : [];
  return [`answer = await mesh.${operation}(${[...whom, ...value].join(", ")})`, "print(answer)"];
}

/** A value as Python writes it. */
function literal(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value)
    .map(([key, each]) => `${JSON.stringify(key)}: ${literal(each)}`)
    .join(", ")}}`;
}
