/** A row as a sentence, and where the thing that it is about is to be found. */
import type { Schemas } from "../../api/client";
import { en } from "../../text/en";
import type { Action } from "../../text/en/actions";

export type Row = Schemas["AuditRow"];

const ACTIONS: ReadonlyMap<string, Action> = new Map(en.audit.groups.flatMap((group) => Object.entries(group.actions)));
const DEVICE = /^bmac-([0-9a-f]{12})$/;

/** What stands before the name of the thing, and behind it; what nobody knows is shown as it is. */
export function told(row: Row): readonly [string, string] {
  return ACTIONS.get(row.action)?.describe(row.detail) ?? [row.action, ""];
}

/** What a kind of change is called. */
export function nameOf(action: string): string {
  return ACTIONS.get(action)?.name ?? action;
}

export type About =
  | { readonly kind: "self" }
  | { readonly kind: "device"; readonly mac: string; readonly href: string }
  | { readonly kind: "thing"; readonly text: string; readonly href: string | null; readonly isMono: boolean };

/** What a row is about. Who signs in or out is told already. */
export function about({ action, target, detail }: Row): About {
  const [part] = action.split(".");
  const encoded = encodeURIComponent(target);
  const mac = DEVICE.exec(target)?.[1];
  if (mac !== undefined) {
    // A gateway that was released is a device all the same.
    const isGateway = part === "gateway" && action !== "gateway.release";
    return { kind: "device", mac, href: isGateway ? `/gateways/${mac}` : `/devices/${encoded}` };
  }
  const thing = (href: string | null, text = target, isMono = false): About => ({ kind: "thing", text, href, isMono });
  switch (part) {
    case "auth":
      return { kind: "self" };
    case "user":
      return thing("/people");
    case "api-key":
      return thing("/keys");
    case "job":
      return thing(action === "job.delete" ? null : `/jobs/${encoded}`);
    case "label":
      return thing(action === "label.remove" ? null : `/devices?Label=${encoded}`);
    case "firmware":
      return thing(action === "firmware.delete" ? null : `/firmware/${encoded}`, firmwareIn(detail) ?? target);
    default:
      return thing(null, target, true);
  }
}

function firmwareIn({ modelNumber, version }: Row["detail"]): string | null {
  return typeof modelNumber === "string" && typeof version === "string" ? `${version} · ${modelNumber}` : null;
}
