/** Events of alarms as sentences. */
import type { Alarm } from "../../../alarms/alarm-styles";
import { actorText } from "../../../text/actor";
import { isolateBidi } from "../../../text/bidi";
import { deviceCountText } from "../../../text/device-count";
import { en } from "../../../text/en";
import { formatCount, formatUntil } from "../../../text/format";
import type { AlarmEvent } from "./live-alarm.svelte";

const words = en.alarms.events;
const KINDS: ReadonlyMap<string, string> = new Map(Object.entries(words.kinds));
const severities: Readonly<Record<string, string>> = en.alarms.severities;

/** Return what happened as a sentence. An unknown kind is shown by its name. */
export function describeEvent({ time, kind, actor, detail }: AlarmEvent, { rule }: Pick<Alarm, "rule">): string {
  const who = isolateBidi(actorText(actor ?? en.common.unknown));
  const channel = isolateBidi(String(detail["channel"] ?? en.common.unknown));
  const read = (name: string): number => Number(detail[name] ?? 0);
  switch (kind) {
    case "opened":
    case "recovering":
    case "relapsed":
    case "merged":
      return words[kind];
    case "reopened":
      return words.reopened(read("times"));
    case "severity":
      return words.severity(severities[String(detail["severity"])] ?? String(detail["severity"]));
    case "members":
      return words.members(countMembers(read("members"), rule), formatCount(read("before")));
    case "acknowledged":
    case "unacknowledged":
    case "note":
      return words[kind](who);
    case "silenced":
      return words.silenced(who, formatUntil(String(detail["until"]), Date.parse(time)));
    case "unsilenced":
      return actor === null ? words.silenceEnded : words.unsilenced(who);
    case "notified":
      return words.notified(channel, describeMessage(detail["kind"]));
    case "not-delivered":
      return words.notDelivered(channel, describeMessage(detail["kind"]));
    case "cleared":
      return describeEnd(read("back"), read("affected"), rule);
    default:
      return kind;
  }
}

/** Return the text of a note; null for other events. */
export function findNote({ kind, detail }: AlarmEvent): string | null {
  return kind === "note" ? String(detail["text"] ?? "") : null;
}

/** Return what a channel was told. An unknown kind is shown by its name. */
function describeMessage(kind: unknown): string {
  return KINDS.get(String(kind)) ?? String(kind);
}

function countMembers(number: number, rule: string): string {
  return rule === "gateways-lost" ? words.gateways(number) : deviceCountText(number);
}

/** An alarm about silent devices ends when all report again: only those about gateways count who is back. */
function describeEnd(back: number, affected: number, rule: string): string {
  return affected === 0 || rule === "device-offline" ? words.cleared : words.back(formatCount(back), deviceCountText(affected));
}
