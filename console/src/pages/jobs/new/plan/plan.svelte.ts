/** Plan of a job as typed into the form. The defaults are careful: a few devices first, and a pause when too many fail. */
import type { Schemas } from "../../../../api/client";

export type Unit = "percent" | "count";
export type Method = NonNullable<Schemas["NewJob"]["method"]>;

export interface WaveRow {
  /** Identifies the row. */
  readonly key: number;
  name: string;
  amount: string;
  unit: Unit;
}

export interface StopRow {
  readonly key: number;
  type: Schemas["Criterion"]["type"];
  percent: string;
  /** Minimum number of executed devices before the rule applies. */
  least: string;
  action: Schemas["Criterion"]["action"];
}

/** Limits of the service. */
export const MAX_WAVES = 50;
export const MAX_STOPS = 10;

export class Plan {
  /** Name of the job; empty: the suggested name. */
  name = $state("");
  rollout = $state<"canary" | "waves" | "once">("canary");
  canary = $state<{ amount: string; unit: Unit }>({ amount: "5", unit: "percent" });
  waves = $state<WaveRow[]>([
    { key: 1, name: "", amount: "5", unit: "percent" },
    { key: 2, name: "", amount: "50", unit: "percent" },
  ]);
  gate = $state({ success: "95", soak: "0", pause: false });
  stops = $state<StopRow[]>([{ key: 1, type: "ALL", percent: "20", least: "5", action: "PAUSE" }]);
  start = $state<"now" | "later" | "hand">("now");
  /** Local time in the format of a datetime-local input; the same for `deadline`. */
  startAt = $state("");
  deadline = $state("");
  method = $state<Method | "">("");
  stage = $state(false);
  allowDowngrade = $state(false);
  onNewerJob = $state<Schemas["NewJob"]["onNewerJob"]>("queue");
  limits = $state({ perGateway: "1", perJob: "", perMinute: "" });
  retry = $state({ max: "2", seconds: "60" });
  timeouts = $state({ queueDays: "7", step: "10", total: "" });
  heartbeats = $state("3");

  readonly #initial = this.serialized;

  /** Whether any value differs from the defaults. */
  get isChanged(): boolean {
    return this.serialized !== this.#initial;
  }

  /** All values as JSON, for storage. */
  get serialized(): string {
    const { name, rollout, canary, waves, gate, stops, start, startAt, deadline, method, stage } = this;
    const { allowDowngrade, onNewerJob, limits, retry, timeouts, heartbeats } = this;
    return JSON.stringify({
      ...{ name, rollout, canary, waves, gate, stops, start, startAt, deadline, method, stage },
      ...{ allowDowngrade, onNewerJob, limits, retry, timeouts, heartbeats },
    });
  }

  /** Restore values from their serialized form. */
  restore(text: string): void {
    Object.assign(this, JSON.parse(text));
  }

  addWave(): void {
    this.waves.push({ key: nextKey(this.waves), name: "", amount: "", unit: this.waves.at(-1)?.unit ?? "percent" });
  }

  addStop(): void {
    this.stops.push({ key: nextKey(this.stops), type: "ALL", percent: "20", least: "5", action: "PAUSE" });
  }
}

function nextKey(rows: readonly { readonly key: number }[]): number {
  return Math.max(0, ...rows.map(({ key }) => key)) + 1;
}
