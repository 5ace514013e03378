/** Filter of the device list of a job, as part of the page address. */
import { EXECUTION_STATES, type ExecutionState, type Job, countTargeted, countAll } from "../../../jobs/states";
import { withParam, withoutParams } from "../../../query";
import { parseMac } from "../../../text/mac";

export interface Filter {
  readonly State?: ExecutionState[];
  readonly ReasonCode?: string[];
  readonly Gateway?: string;
  /** Whether to list only the devices that were left out when the job was created, or only the others. */
  readonly LeftOut?: boolean;
}

/** Query parameter with the device whose evidence is shown beside the list. */
const DEVICE = "Device";

/** Parse the filter of a page address; invalid values are ignored. */
export function parseFilter(query: URLSearchParams): Filter {
  const State = EXECUTION_STATES.filter((state) => query.getAll("State").includes(state));
  const ReasonCode = query.getAll("ReasonCode").filter((code) => code !== "");
  const gateway = parseMac(query.get("Gateway") ?? "");
  return {
    ...(State.length > 0 && { State }),
    ...(ReasonCode.length > 0 && { ReasonCode }),
    ...(gateway !== null && { Gateway: gateway }),
    ...(query.get("LeftOut") === "true" && { LeftOut: true }),
  };
}

/** Return the filter to send to the service: devices that were left out when the job was created are excluded, unless the
 * filter includes them or the job has no other devices. */
export function buildApiFilter(filter: Filter, job: Job): Filter {
  return filter.LeftOut || countAll(countTargeted(job)) === 0 ? filter : { ...filter, LeftOut: false };
}

export function isFiltered(filter: Filter): boolean {
  return Object.keys(filter).length > 0;
}

/** Choice of devices in one state, or of the devices that were left out when the job was created. */
export type StateChoice = ExecutionState | "left-out";

/** Return the query with this choice alone; null: with all devices that were not left out. Reason codes are removed:
 * they belong to the previous choice. */
export function withChoice(query: URLSearchParams, choice: StateChoice | null): URLSearchParams {
  const next = withoutParams(query, "State", "ReasonCode", "LeftOut", DEVICE);
  return choice === "left-out" ? withParam(next, "LeftOut", "true") : withParam(next, "State", choice);
}

/** Return a query for the devices with one reason code. */
export function buildReasonQuery(choice: StateChoice, code: string): URLSearchParams {
  return withParam(withChoice(new URLSearchParams(), choice), "ReasonCode", code);
}

/** Return a query for the devices behind one gateway. */
export function buildGatewayQuery(mac: string): URLSearchParams {
  return new URLSearchParams({ Gateway: mac });
}

/** Parse the id of the device whose evidence is shown; null: none. */
export function parseDevice(query: URLSearchParams): string | null {
  const mac = parseMac(query.get(DEVICE) ?? "");
  return mac === null ? null : `bmac-${mac}`;
}

/** Return the query that also shows the evidence of one device; null: of none. */
export function withDevice(query: URLSearchParams, id: string | null): URLSearchParams {
  return withParam(query, DEVICE, id);
}
