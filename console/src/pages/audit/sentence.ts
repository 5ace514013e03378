/** Audit rows as sentences, with links to their targets. */
import type { Schemas } from "../../api/client";
import { en } from "../../text/en";
import type { Action } from "../../text/en/actions";

export type Row = Schemas["AuditRow"];

const ACTIONS: ReadonlyMap<string, Action> = new Map(en.audit.groups.flatMap((group) => Object.entries(group.actions)));
const DEVICE = /^bmac-([0-9a-f]{12})$/;

/** Return the text before the name of the target and the text after it. An unknown action is shown as it is. */
export function describeAction(row: Row): readonly [string, string] {
  return ACTIONS.get(row.action)?.describe(row.detail) ?? [row.action, ""];
}

/** Return the name of an action. */
export function findActionName(action: string): string {
  return ACTIONS.get(action)?.name ?? action;
}

/** Target of a row; "self" is the actor. */
export type Subject =
  | { readonly kind: "self" }
  | { readonly kind: "device"; readonly mac: string; readonly href: string }
  | { readonly kind: "thing"; readonly text: string; readonly href: string | null; readonly isMono: boolean };

/** Return the target of a row. Logging in or out has no target but the actor. */
export function findSubject({ action, target, detail }: Row): Subject {
  const [part] = action.split(".");
  const encoded = encodeURIComponent(target);
  const mac = DEVICE.exec(target)?.[1];
  if (mac !== undefined) {
    // A released gateway is still a device.
    const isGateway = part === "gateway" && action !== "gateway.release";
    return { kind: "device", mac, href: isGateway ? `/gateways/${mac}` : `/devices/${encoded}` };
  }
  const thing = (href: string | null, text = target, isMono = false): Subject => ({ kind: "thing", text, href, isMono });
  switch (part) {
    case "auth":
      return { kind: "self" };
    case "user":
      return thing("/people");
    case "api-key":
      return thing("/keys");
    case "alarm":
      return thing(`/alarms/${encoded}`);
    case "channel":
    case "alarm-routes":
      return thing("/settings/channels");
    case "job":
      return thing(action === "job.delete" ? null : `/jobs/${encoded}`);
    case "label":
      return thing(action === "label.remove" ? null : `/devices?Label=${encoded}`);
    case "firmware":
      return thing(action === "firmware.delete" ? null : `/firmware/${encoded}`, formatFirmware(detail) ?? target);
    default:
      return thing(null, target, true);
  }
}

function formatFirmware({ modelNumber, version }: Row["detail"]): string | null {
  return typeof modelNumber === "string" && typeof version === "string" ? `${version} · ${modelNumber}` : null;
}
