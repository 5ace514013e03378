/** Last known value of a property. */
import type { Schemas } from "../api/client";

/** Value that the device reported or returned. */
export interface LastValue {
  readonly value: unknown;
  readonly raw: string | null;
  readonly ext: Schemas["Sample"]["ext"];
  readonly time: string;
  readonly origin: "reported" | "read";
}
