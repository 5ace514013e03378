/** Which firmware is asked for: the query of the address has the very filters of the REST interface. */
import type { operations } from "../../../generated/schema";
import { parseVersion } from "../../text/versions";
import type { Firmware } from "./records";

type Asked = NonNullable<operations["listFirmware"]["parameters"]["query"]>;
export type Filter = Pick<Asked, "ModelNumber" | "Version" | "State">;

export const STATES: readonly Firmware["state"][] = ["draft", "released", "withdrawn"];

const MODEL = /^[0-9a-f]{4}$/i;

export function isModel(text: string): boolean {
  return MODEL.test(text);
}

/** The filters in an address; what the service would not understand is none. */
export function filterIn(query: URLSearchParams): Filter {
  const filter: Filter = {};
  const model = query.get("ModelNumber");
  if (model !== null && isModel(model)) filter.ModelNumber = model.toUpperCase();
  const version = query.get("Version");
  if (version !== null && parseVersion(version) !== null) filter.Version = version;
  const state = STATES.find((each) => each === query.get("State"));
  if (state !== undefined) filter.State = state;
  return filter;
}
