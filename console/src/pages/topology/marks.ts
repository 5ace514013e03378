/** Marks of nodes: a color and a shape for each class of the chosen property, so that color alone says nothing. */
import { SIGNAL_CLASSES } from "../../mesh/signal-class";
import { en } from "../../text/en";
import { formatCount } from "../../text/format";
import { versionText } from "../../text/versions";
import type { MeshNode } from "./mesh";

export const COLORINGS = ["signal", "hops", "firmware"] as const;
export type Coloring = (typeof COLORINGS)[number];

export type Shape = "square" | "disc" | "ring" | "triangle" | "diamond" | "cross";

export interface Mark {
  readonly key: string;
  /** Place in the legend. */
  readonly rank: number;
  readonly text: string;
  /** Color, as a token of the theme. */
  readonly token: string;
  readonly shape: Shape;
}

export interface LegendEntry {
  readonly mark: Mark;
  readonly count: number;
}

type FindFirmware = (mac: string) => string | undefined;

const words = en.topology.marks;
const GATEWAY: Mark = { key: "gateway", rank: -1, text: words.gateway, token: "--accent", shape: "square" };
const ORPHAN: Mark = { key: "orphan", rank: 100, text: words.orphan, token: "--bad", shape: "cross" };
const NO_SIGNAL: Mark = { key: "none", rank: 99, text: en.common.signal.none, token: "--off", shape: "ring" };

/** Looks of signal classes: a good signal is quiet. */
const SIGNAL_LOOKS: Record<(typeof SIGNAL_CLASSES)[number], readonly [string, Shape]> = {
  good: ["--ok", "disc"],
  fair: ["--ok", "ring"],
  weak: ["--warn", "triangle"],
  "very-weak": ["--bad", "diamond"],
};
const SIGNAL_MARKS = new Map(
  SIGNAL_CLASSES.map((key, rank): [string, Mark] => {
    const [token, shape] = SIGNAL_LOOKS[key];
    return [key, { key, rank, text: en.common.signal[key], token, shape }];
  }),
);

/** Looks of classes without a meaning of their own; the last one is for all others. */
const LOOKS: readonly (readonly [string, Shape])[] = [
  ["--series-1", "disc"],
  ["--series-2", "triangle"],
  ["--series-3", "diamond"],
  ["--series-4", "ring"],
  ["--off", "ring"],
];

/** Return a function that returns the mark of a node. */
export function buildMarks(coloring: Coloring, nodes: readonly MeshNode[], findFirmware: FindFirmware): (node: MeshNode) => Mark {
  const marks = new Map(coloring === "firmware" ? listFirmware(nodes, findFirmware) : []);
  return (node) => {
    const { depth, orphan, signal } = node.data;
    if (depth === 0) return GATEWAY;
    if (orphan) return ORPHAN;
    if (coloring === "hops") return markHops(depth ?? 1);
    if (coloring === "signal") return SIGNAL_MARKS.get(signal ?? "") ?? NO_SIGNAL;
    return marks.get(findFirmware(node.mac) ?? "") ?? OTHER_FIRMWARE;
  };
}

const OTHER_FIRMWARE: Mark = { key: "other", rank: 99, text: words.otherFirmware, token: "--off", shape: "ring" };

/** Return the marks of the most frequent versions. */
function listFirmware(nodes: readonly MeshNode[], findFirmware: FindFirmware): [string, Mark][] {
  const counts = new Map<string, number>();
  for (const { mac } of nodes) {
    const version = findFirmware(mac);
    if (version !== undefined) counts.set(version, (counts.get(version) ?? 0) + 1);
  }
  const frequent = [...counts].sort(([one, a], [other, b]) => b - a || one.localeCompare(other)).slice(0, LOOKS.length - 1);
  return frequent.map(([version], rank) => {
    const [token, shape] = getLook(rank);
    return [version, { key: version, rank, text: versionText(version), token, shape }];
  });
}

function markHops(depth: number): Mark {
  const rank = Math.min(depth, LOOKS.length);
  const [token, shape] = getLook(rank - 1);
  return { key: `hops ${rank}`, rank, text: words.hops(formatCount(rank), rank === 1, rank === LOOKS.length), token, shape };
}

function getLook(index: number): readonly [string, Shape] {
  return LOOKS[Math.min(index, LOOKS.length - 1)] ?? ["--off", "ring"];
}

/** Return the marks of nodes with their numbers, in the order of their classes. */
export function buildLegend(nodes: readonly MeshNode[], getMark: (node: MeshNode) => Mark): LegendEntry[] {
  const entries = new Map<string, { mark: Mark; count: number }>();
  for (const node of nodes) {
    const mark = getMark(node);
    const entry = entries.get(mark.key);
    if (entry) entry.count += 1;
    else entries.set(mark.key, { mark, count: 1 });
  }
  return [...entries.values()].sort((a, b) => a.mark.rank - b.mark.rank);
}

