/** Live events of gateways, and links to their pages. */
import type { Schemas } from "../../api/client";
import type { LiveEvent } from "../../live/socket.svelte";

export type Gateway = Schemas["Gateway"];

/** Change of one gateway. */
export type GatewayChange =
  | { readonly mac: string; readonly isReleased: true }
  | { readonly mac: string; readonly isReleased: false; readonly gateway: Gateway };

export function parseGatewayEvent(event: LiveEvent): GatewayChange {
  const mac = String(event.data["mac"]);
  if (event.data["released"] === true) return { mac, isReleased: true };
  // The event holds the gateway as in REST.
  return { mac, isReleased: false, gateway: event.data as unknown as Gateway };
}

/** Return the path of the page of a gateway. */
export function buildGatewayHref(mac: string): string {
  return `/gateways/${encodeURIComponent(mac)}`;
}

/** Return the path of the list of the devices behind a gateway. */
export function buildDevicesHref(mac: string): string {
  return `/devices?Gateway=${encodeURIComponent(mac)}`;
}
