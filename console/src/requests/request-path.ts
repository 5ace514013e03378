/** The way of a request, hop by hop, as far as the answer tells it. */
import type { Schemas } from "../api/client";

export interface PathNode {
  readonly mac: string;
  readonly role: "gateway" | "relay" | "extender" | "device";
  /** Whether it gave no answer. */
  readonly isSilent: boolean;
}

/** Who answered, by the number that the answer has. */
export const ORIGIN = { connected: 0, unconnected: 1, extender: 16, gateway: 32 } as const;

const MACS = /^[0-9a-f]{12}(?:-[0-9a-f]{12})*$/;

/** From the gateway to the device; null: the route is spelt in a way of the gateway's own, and shown as it is. */
export function requestPath(answer: Schemas["RequestAnswer"], device: string): readonly PathNode[] | null {
  const told = (answer.route ?? answer.extenderRoute ?? "").toLowerCase();
  if (told !== "" && !MACS.test(told)) return null;
  const between = told.split("-").filter((mac) => mac !== "" && mac !== answer.gateway && mac !== device);
  const extender = answer.extenderId?.toLowerCase();
  const isSilent = answer.origin === ORIGIN.extender || answer.origin === ORIGIN.gateway;
  const hops: PathNode[] = [{ mac: answer.gateway, role: "gateway", isSilent: false }];
  for (const mac of between) hops.push({ mac, role: mac === extender ? "extender" : "relay", isSilent: false });
  if (device !== answer.gateway) hops.push({ mac: device, role: "device", isSilent });
  return hops;
}
