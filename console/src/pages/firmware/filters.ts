/** Filters of the firmware catalogue: the query of the page address has the same parameters as the REST request. */
import type { operations } from "../../../generated/schema";
import { parseVersion } from "../../text/versions";
import type { Firmware } from "./records";

type ListQuery = NonNullable<operations["listFirmware"]["parameters"]["query"]>;
export type Filter = Pick<ListQuery, "ModelNumber" | "Version" | "State">;

export const STATES: readonly Firmware["state"][] = ["draft", "released", "withdrawn"];

const MODEL = /^[0-9a-f]{4}$/i;

export function isModelNumber(text: string): boolean {
  return MODEL.test(text);
}

/** Parse the filters of a page address; values that the service would refuse are ignored. */
export function parseFilter(query: URLSearchParams): Filter {
  const filter: Filter = {};
  const model = query.get("ModelNumber");
  if (model !== null && isModelNumber(model)) filter.ModelNumber = model.toUpperCase();
  const version = query.get("Version");
  if (version !== null && parseVersion(version) !== null) filter.Version = version;
  const state = STATES.find((each) => each === query.get("State"));
  if (state !== undefined) filter.State = state;
  return filter;
}
