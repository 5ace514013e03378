/** Route of a request, hop by hop, as far as the response contains it. */
import type { Schemas } from "../api/client";

export interface PathNode {
  readonly mac: string;
  readonly role: "gateway" | "relay" | "extender" | "device";
  /** Whether the node did not respond. */
  readonly isSilent: boolean;
}

/** Node that produced the response, by its number in the response. */
export const ORIGIN = { connected: 0, unconnected: 1, extender: 16, gateway: 32 } as const;

const MACS = /^[0-9a-f]{12}(?:-[0-9a-f]{12})*$/;

/** Return the nodes from the gateway to the device; null if the route has an unknown notation and is shown as it is. */
export function buildRequestPath(answer: Schemas["RequestOutcome"], device: string): readonly PathNode[] | null {
  const route = (answer.route ?? answer.extenderRoute ?? "").toLowerCase();
  if (route !== "" && !MACS.test(route)) return null;
  const between = route.split("-").filter((mac) => mac !== "" && mac !== answer.gateway && mac !== device);
  const extender = answer.extenderId?.toLowerCase();
  const isSilent = answer.origin === ORIGIN.extender || answer.origin === ORIGIN.gateway;
  const hops: PathNode[] = [{ mac: answer.gateway, role: "gateway", isSilent: false }];
  for (const mac of between) hops.push({ mac, role: mac === extender ? "extender" : "relay", isSilent: false });
  if (device !== answer.gateway) hops.push({ mac: device, role: "device", isSilent });
  return hops;
}
