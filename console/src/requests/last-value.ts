/** What is known of a property before somebody asks for it. */
import type { Schemas } from "../api/client";

/** A value that the device told. */
export interface LastValue {
  readonly value: unknown;
  readonly raw: string | null;
  readonly ext: Schemas["Sample"]["ext"];
  readonly time: string;
  readonly origin: "reported" | "read";
}
