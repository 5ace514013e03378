/** Appearance of alarms: severities, states and the verdict over the fleet. Each has a word or a sentence beside its icon. */
import CircleCheck from "@lucide/svelte/icons/circle-check";
import CircleQuestion from "@lucide/svelte/icons/circle-question-mark";
import Hand from "@lucide/svelte/icons/hand";
import Info from "@lucide/svelte/icons/info";
import OctagonAlert from "@lucide/svelte/icons/octagon-alert";
import Triangle from "@lucide/svelte/icons/triangle-alert";
import Bell from "@lucide/svelte/icons/bell";

import type { Schemas } from "../api/client";
import type { Icon, Tone } from "../components/StateLabel.svelte";
import type { StateStyle } from "../jobs/states";
import { en } from "../text/en";

export type Alarm = Schemas["Alarm"];

interface Style {
  readonly tone: Tone;
  readonly icon: Icon;
}

const words = en.alarms;

const SEVERITIES: Record<Alarm["severity"], Style> = {
  critical: { tone: "bad", icon: OctagonAlert },
  warning: { tone: "warn", icon: Triangle },
  info: { tone: "off", icon: Info },
};

const STATES: Record<Alarm["state"], Style> = {
  open: { tone: "warn", icon: Bell },
  acknowledged: { tone: "accent", icon: Hand },
  cleared: { tone: "ok", icon: CircleCheck },
};

export const VERDICTS: Record<Schemas["Verdict"]["tone"], Style> = {
  ok: { tone: "ok", icon: CircleCheck },
  warning: SEVERITIES.warning,
  critical: SEVERITIES.critical,
  unknown: { tone: "off", icon: CircleQuestion },
};

/** Return the style of a severity, without its color once the alarm has ended. */
export function getSeverityStyle({ severity, state }: Pick<Alarm, "severity" | "state">): StateStyle {
  const { tone, icon } = SEVERITIES[severity];
  return { word: words.severities[severity], tone: state === "cleared" ? "off" : tone, icon };
}

export function getStateStyle({ state }: Pick<Alarm, "state">): StateStyle {
  return { word: words.states[state], ...STATES[state] };
}
