/** Which devices of a job are shown: it is part of the address. */
import { EXECUTION_STATES, type ExecutionState, type Job, countTargeted, countAll } from "../../../jobs/states";
import { withParam, withoutParams } from "../../../query";
import { parseMac } from "../../../text/mac";

export interface Filter {
  readonly State?: ExecutionState[];
  readonly ReasonCode?: string[];
  readonly Gateway?: string;
  /** Who was left out from the beginning; false: the others. */
  readonly LeftOut?: boolean;
}

/** Whose evidence is shown beside the list. */
const DEVICE = "Device";

export function filterIn(query: URLSearchParams): Filter {
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

/** What the service is asked for. Who was left out from the beginning is shown to who asks for it, or where nobody else is. */
export function asked(filter: Filter, job: Job): Filter {
  return filter.LeftOut || countAll(countTargeted(job)) === 0 ? filter : { ...filter, LeftOut: false };
}

export function isFiltered(filter: Filter): boolean {
  return Object.keys(filter).length > 0;
}

/** Those in one state, or those who were left out. */
export type Choice = ExecutionState | "left-out";

/** The same list with this choice alone; with none, all that are meant. Why they failed is another question then. */
export function withChoice(query: URLSearchParams, choice: Choice | null): URLSearchParams {
  const next = withoutParams(query, "State", "ReasonCode", "LeftOut", DEVICE);
  return choice === "left-out" ? withParam(next, "LeftOut", "true") : withParam(next, "State", choice);
}

/** Those for whom one reason is told. */
export function withReason(choice: Choice, code: string): URLSearchParams {
  return withParam(withChoice(new URLSearchParams(), choice), "ReasonCode", code);
}

/** All that are meant behind one gateway. */
export function withGateway(mac: string): URLSearchParams {
  return new URLSearchParams({ Gateway: mac });
}

export function deviceIn(query: URLSearchParams): string | null {
  const mac = parseMac(query.get(DEVICE) ?? "");
  return mac === null ? null : `bmac-${mac}`;
}

/** The same list, and beside it the evidence of one device; null: of none. */
export function withDevice(query: URLSearchParams, id: string | null): URLSearchParams {
  return withParam(query, DEVICE, id);
}
