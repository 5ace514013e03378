/** Channels in words: their states, kinds and settings. */
import CircleCheck from "@lucide/svelte/icons/circle-check";
import CircleSlash from "@lucide/svelte/icons/circle-slash";
import Clock from "@lucide/svelte/icons/clock";
import Hourglass from "@lucide/svelte/icons/hourglass";
import Layers from "@lucide/svelte/icons/layers";
import OctagonX from "@lucide/svelte/icons/octagon-x";
import Triangle from "@lucide/svelte/icons/triangle-alert";

import type { Schemas } from "../../api/client";
import type { StateStyle } from "../../jobs/states";
import { en } from "../../text/en";

export type Channel = Schemas["Channel"];
export type ChannelKind = Schemas["ChannelKind"];
export type NewChannel = Schemas["NewChannel"];
export type WebhookFormat = Schemas["WebhookFormat"];
export type Delivery = Schemas["Delivery"];
export type DeliveryState = Schemas["DeliveryState"];

const words = en.channels;

const STATES: Record<Channel["state"], StateStyle> = {
  ready: { word: words.states.ready, tone: "ok", icon: CircleCheck },
  failing: { word: words.states.failing, tone: "bad", icon: Triangle },
  off: { word: words.states.off, tone: "off", icon: CircleSlash },
};

export const DELIVERY_STATES: Record<DeliveryState, StateStyle> = {
  held: { word: words.messages.states.held, tone: "off", icon: Hourglass },
  waiting: { word: words.messages.states.waiting, tone: "accent", icon: Clock },
  sent: { word: words.messages.states.sent, tone: "ok", icon: CircleCheck },
  dead: { word: words.messages.states.dead, tone: "bad", icon: OctagonX },
  folded: { word: words.messages.states.folded, tone: "off", icon: Layers },
};

const DELIVERY_KINDS: ReadonlyMap<string, string> = new Map(Object.entries(words.messages.kinds));

export function getChannelStyle({ state }: Channel): StateStyle {
  return STATES[state];
}

/** Return the kind of a channel, and the format of a webhook. */
export function describeKind({ kind, format }: Channel): string {
  return format === null ? words.kinds[kind].name : `${words.kinds[kind].name} · ${words.formats[format].name}`;
}

/** Return what a message says. A later version of the service may have more kinds: these are shown by their names. */
export function describeDelivery({ kind }: Delivery): string {
  return DELIVERY_KINDS.get(kind) ?? kind;
}

/** Return whether messages are texts for people, which are grouped and held; programs get an event for each change. */
export function isForPeople({ kind, format }: Channel): boolean {
  return kind === "email" || format === "text";
}

/** Return the settings of a channel for a request that replaces them. The URL and the key stay the same: they are absent. */
export function copySettings({ name, kind, enabled, format, recipients }: Channel): NewChannel {
  // The time zone is only for the routes that come with the first channel.
  return { name, kind, enabled, recipients, timeZone: "UTC", ...(format !== null && { format }) };
}
