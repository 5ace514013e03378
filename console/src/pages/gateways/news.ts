/** What live events tell of gateways. */
import type { Schemas } from "../../api/client";
import type { LiveEvent } from "../../live/socket.svelte";

export type Gateway = Schemas["Gateway"];

export type News =
  | { readonly mac: string; readonly isReleased: true }
  | { readonly mac: string; readonly isReleased: false; readonly gateway: Gateway };

export function newsOf(event: LiveEvent): News {
  const mac = String(event.data["mac"]);
  if (event.data["released"] === true) return { mac, isReleased: true };
  // The service promises that the event holds the gateway as REST shows it.
  return { mac, isReleased: false, gateway: event.data as unknown as Gateway };
}

/** Where a gateway is in the console, and the devices behind it. */
export function placeOf(mac: string): string {
  return `/gateways/${encodeURIComponent(mac)}`;
}

export function devicesBehind(mac: string): string {
  return `/devices?Gateway=${encodeURIComponent(mac)}`;
}
